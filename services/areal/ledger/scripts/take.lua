-- The next closed groups from a position, contiguous: {'OK', group, outcome, group, outcome, …}.
-- ARGV: 2 fence, 3 from group, 4 most groups. Reads the closed table, not the ready stream, which only wakes who waits:
-- the position is the trainer's, a hole below it must not hold it up, and poison may have replaced complete since.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local group = tonumber(ARGV[3])
local beyond = group + tonumber(ARGV[4])
local answer = {'OK'}
local outcome = group < beyond and redis.call('HGET', closed, text(group))
while outcome do
  answer[#answer + 1] = text(group)
  answer[#answer + 1] = outcome
  group = group + 1
  outcome = group < beyond and redis.call('HGET', closed, text(group))
end
return answer
