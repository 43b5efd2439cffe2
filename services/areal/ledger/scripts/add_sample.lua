-- Stores a sample once. The only script a worker's login can run to its end: it writes the group's own key and no other.
-- KEYS: 1 samples of the group. ARGV: 1 group, 2 index, 3 payload, 4 meta of the sample, 5 meta, 6 closed.
-- The last two are keys of the same slot that are only read: as KEYS, Redis would ask for the right to write them.
-- Answers {outcome, meta that counts or false}.

local stored = redis.call('HGET', KEYS[1], 'm' .. ARGV[2])
local low = tonumber(redis.call('HGET', ARGV[5], 'low') or '0')
if tonumber(ARGV[1]) < low or redis.call('HEXISTS', ARGV[6], ARGV[1]) == 1 then
  return {'finished', stored}
end
if stored then
  return {'duplicate', stored}
end
redis.call('HSET', KEYS[1], 'p' .. ARGV[2], ARGV[3], 'm' .. ARGV[2], ARGV[4])
return {'stored', ARGV[4]}
