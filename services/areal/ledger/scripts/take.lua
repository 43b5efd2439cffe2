-- The batch of a step: {'OK', group, outcome, group, outcome, …}, or {'OK'} while it isn't whole. ARGV: 2 fence, 3 step.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local answer = {'OK'}
for group in members(ARGV[3]) do
  local outcome = redis.call('HGET', closed, group)
  if not outcome or outcome == 'trained' then return {'OK'} end
  answer[#answer + 1] = group
  answer[#answer + 1] = outcome
end
return answer
