-- Takes a closed group without a gradient back to admitted. ARGV: 2 fence, 3 group. Answers {'OK', '1' if it was closed}.
local stored = newer('controller_fence', tonumber(ARGV[2]))
if stored then return {'FENCED', stored} end

local group = tonumber(ARGV[3])
if group < counter('low') or redis.call('HDEL', closed, ARGV[3]) == 0 then return {'OK', '0'} end
redis.call('UNLINK', prefix .. ARGV[3])
if group < counter('frontier') then
  -- The stream refuses an id it has seen: it is made anew.
  redis.call('DEL', ready)
  for g = counter('low'), group - 1 do
    local outcome = redis.call('HGET', closed, text(g))
    if outcome then publish(g, outcome) end
  end
  set('frontier', group)
end
return {'OK', '1'}
