-- A checkpoint holds every group below `consumed`: frees them. ARGV: 2 fence, 3 consumed. Answers {'OK', low}.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local low, consumed = counter('low'), tonumber(ARGV[3])
if consumed > low then
  free(low, consumed)
  set('low', consumed)
  redis.call('XTRIM', ready, 'MINID', text(consumed + 1) .. '-0')
  append(math.max(counter('frontier'), consumed))
  low = consumed
end
return {'OK', text(low)}
