-- A checkpoint holds the batches below `step`: frees them. ARGV: 2 fence, 3 step. Answers {'OK', steps committed}.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end
return {'OK', text(commit(tonumber(ARGV[3])))}
