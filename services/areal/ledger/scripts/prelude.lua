-- Comes before every script but add_sample.
-- KEYS: 1 meta, 2 closed, 3 ready. Sample keys are ARGV[1] .. group: same hash tag, same slot.
-- A stored fence that is newer answers {'FENCED', stored}; an older one is replaced, so a store that lost its tail heals.

local meta, closed, ready, prefix = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

local function text(number)
  return string.format('%.0f', number)
end

local function counter(field)
  return tonumber(redis.call('HGET', meta, field) or '0')
end

local function set(field, number)
  redis.call('HSET', meta, field, text(number))
end

local function newer(field, mine)
  local stored = counter(field)
  if mine > stored then set(field, mine) end
  return mine < stored and text(stored)
end

local function publish(group, outcome)
  redis.call('XADD', ready, text(group + 1) .. '-0', 'o', outcome)
end

-- Moves the frontier from `from` over consecutive closed groups, each into the ready stream.
local function append(from)
  local frontier = from
  local outcome = redis.call('HGET', closed, text(frontier))
  while outcome do
    publish(frontier, outcome)
    frontier = frontier + 1
    outcome = redis.call('HGET', closed, text(frontier))
  end
  set('frontier', frontier)
  return frontier
end

-- Deletes everything of the groups [from, upto).
local function free(from, upto)
  local group = from
  while group < upto do
    local keys, fields = {}, {}
    while group < upto and #keys < 500 do
      keys[#keys + 1] = prefix .. text(group)
      fields[#fields + 1] = text(group)
      group = group + 1
    end
    redis.call('UNLINK', unpack(keys))
    redis.call('HDEL', closed, unpack(fields))
  end
end
