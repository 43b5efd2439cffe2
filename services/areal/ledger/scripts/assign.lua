-- The batch of a step, for ever. ARGV: 2 fence, 3 step, 4.. groups.
local stored = newer('controller_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local groups = {}
for a = 4, #ARGV do groups[#groups + 1] = ARGV[a] end
redis.call('HSET', batches, ARGV[3], table.concat(groups, ','))
if tonumber(ARGV[3]) < counter('committed') then
  free(ARGV[3])
  return {'OK'}
end
-- What was freed before an older checkpoint came back will be made again.
local low = counter('low')
for _, group in ipairs(groups) do
  low = math.min(low, tonumber(group))
  if redis.call('HGET', closed, group) == 'trained' then redis.call('HDEL', closed, group) end
end
set('low', low)
ring()
return {'OK'}
