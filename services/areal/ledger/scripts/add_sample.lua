-- Stores a sample once. The only script a worker's login can run to its end: it writes the group's own key and no other.
-- KEYS: 1 meta, 2 closed, 3 samples of the group. ARGV: 1 group, 2 index, 3 payload, 4 meta of the sample.
-- Answers {outcome, meta that counts or false}.

local stored = redis.call('HGET', KEYS[3], 'm' .. ARGV[2])
local low = tonumber(redis.call('HGET', KEYS[1], 'low') or '0')
if tonumber(ARGV[1]) < low or redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  return {'finished', stored}
end
if stored then
  return {'duplicate', stored}
end
redis.call('HSET', KEYS[3], 'p' .. ARGV[2], ARGV[3], 'm' .. ARGV[2], ARGV[4])
return {'stored', ARGV[4]}
