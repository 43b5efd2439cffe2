-- A controller starts. ARGV: 2 fence.
local stored = newer('controller_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end
return {'OK'}
