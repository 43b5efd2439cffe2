-- Deletes samples of groups below the low watermark that came back from somewhere. ARGV: 2 fence, 3.. groups.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local low, swept = counter('low'), 0
for a = 3, #ARGV do
  if tonumber(ARGV[a]) < low then swept = swept + redis.call('UNLINK', prefix .. ARGV[a]) end
end
return {'OK', text(swept)}
