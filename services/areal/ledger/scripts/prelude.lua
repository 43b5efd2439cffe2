-- Comes before every script but add_sample.
-- KEYS: 1 meta, 2 closed, 3 batches, 4 ready. Sample keys are ARGV[1] .. group: same hash tag, same slot.
-- A stored fence that is newer answers {'FENCED', stored}; an older one is replaced, so a store that lost its tail heals.

local meta, closed, batches, ready, prefix = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1]

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

-- Wakes whoever waits for a batch. The stream says nothing: a batch is read from the tables.
local function ring()
  redis.call('XADD', ready, 'MAXLEN', '1', '*', 'o', '')
end

-- The groups of a step's batch.
local function members(step)
  return string.gmatch(redis.call('HGET', batches, step) or '', '%d+')
end

-- Deletes everything of the groups [from, upto).
local function forget(from, upto)
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

-- A checkpoint holds the batch of this step.
local function free(step)
  local low = counter('low')
  for group in members(step) do
    if tonumber(group) >= low then
      redis.call('UNLINK', prefix .. group)
      redis.call('HSET', closed, group, 'trained')
    end
  end
  redis.call('HDEL', batches, step)
end

local function commit(step)
  for _, held in ipairs(redis.call('HKEYS', batches)) do
    if tonumber(held) < step then free(held) end
  end
  local committed = math.max(counter('committed'), step)
  set('committed', committed)
  return committed
end
