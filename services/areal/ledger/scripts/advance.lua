-- Every group below `low` has ended. ARGV: 2 fence, 3 low.
local stored = newer('controller_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local low = tonumber(ARGV[3])
local before = counter('low')
if low > before then
  set('low', low)
  forget(math.max(before, low - 50000), low)  -- what a lost store lacks needs no deleting
end
return {'OK'}
