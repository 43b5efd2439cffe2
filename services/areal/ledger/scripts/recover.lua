-- A trainer starts from a checkpoint of `step`, which may be older than the last. ARGV: 2 fence, 3 step.
local stored = newer('trainer_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end
set('committed', math.min(tonumber(ARGV[3]), counter('committed')))
return {'OK', text(commit(tonumber(ARGV[3])))}
