-- Ends the generation of a group. ARGV: 2 fence, 3 group, 4 outcome, 5 group size, 6 samples needed, 7.. outcomes that may
-- replace a complete one. Answers {'CLOSED', outcome}, {'ALREADY', outcome or false} or {'MISSING', index…}.
local stored = newer('controller_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local group, outcome = tonumber(ARGV[3]), ARGV[4]
if group < counter('low') then return {'ALREADY', false} end

local present = redis.call('HGET', closed, ARGV[3])
if present then
  local replaces = false
  for i = 7, #ARGV do replaces = replaces or ARGV[i] == outcome end
  if not (present == 'complete' and replaces) then return {'ALREADY', present} end
end

local samples = prefix .. ARGV[3]
if outcome == 'complete' then
  local missing = {'MISSING'}
  local size = tonumber(ARGV[5])
  for i = 0, size - 1 do
    if redis.call('HEXISTS', samples, 'm' .. text(i)) == 0 or redis.call('HEXISTS', samples, 'p' .. text(i)) == 0 then
      missing[#missing + 1] = text(i)
    end
  end
  if size - (#missing - 1) < tonumber(ARGV[6]) then return missing end
else
  redis.call('UNLINK', samples)
end

redis.call('HSET', closed, ARGV[3], outcome)
if outcome == 'complete' or outcome == 'poison' then ring() end
return {'CLOSED', outcome}
