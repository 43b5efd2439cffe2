-- The next closed groups from a position, contiguous: {'OK', group, outcome, group, outcome, …}.
-- ARGV: 2 fence, 3 from group, 4 most groups. The outcome is the closed table's: poison may have replaced complete since.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local expected = tonumber(ARGV[3])
local answer = {'OK'}
local entries = redis.call('XRANGE', ready, text(expected + 1) .. '-0', '+', 'COUNT', ARGV[4])
for _, entry in ipairs(entries) do
  local group = tonumber(string.match(entry[1], '^(%d+)-')) - 1
  local outcome = redis.call('HGET', closed, text(group))
  if group ~= expected or not outcome then break end
  answer[#answer + 1] = text(group)
  answer[#answer + 1] = outcome
  expected = expected + 1
end
return answer
