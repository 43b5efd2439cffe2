-- After lost data: the frontier needn't wait for groups below the live trainer's cursor.
-- ARGV: 2 fence, 3 cursor, 4 fence of the trainer that told it, or ''. Answers {'OK', frontier}.
local stored = newer('controller_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local frontier = counter('frontier')
if ARGV[4] == '' or tonumber(ARGV[4]) >= counter('trainer_fence') then
  frontier = append(math.max(frontier, tonumber(ARGV[3])))
end
return {'OK', text(frontier)}
