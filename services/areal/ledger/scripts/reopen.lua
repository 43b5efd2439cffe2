-- Takes a closed group without a gradient back to admitted. ARGV: 2 fence, 3 group. Answers {'OK', '1' if it was closed}.
local stored = newer('controller_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

if tonumber(ARGV[3]) < counter('low') or redis.call('HDEL', closed, ARGV[3]) == 0 then return {'OK', '0'} end
redis.call('UNLINK', prefix .. ARGV[3])
return {'OK', '1'}
