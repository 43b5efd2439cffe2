-- A trainer starts from a checkpoint that holds every group below `consumed`.
-- ARGV: 2 fence, 3 consumed, 4 cursor of a live trainer, or ''. Answers {'OK', frontier}.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local consumed = tonumber(ARGV[3])
free(counter('low'), consumed)
set('low', consumed)
-- The stream refuses an id it has seen: it is made anew.
redis.call('DEL', ready)
local frontier = append(consumed)
local cursor = tonumber(ARGV[4])
if cursor and cursor > frontier then frontier = append(cursor) end
return {'OK', text(frontier)}
