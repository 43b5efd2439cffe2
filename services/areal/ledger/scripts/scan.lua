-- The samples held of some groups, without their payloads. ARGV: 2.. groups.
-- Answers {'OK', {group, bytes of payload, index, meta, index, meta, …}, …}; groups without samples are left out.
local answer = {'OK'}
for a = 2, #ARGV do
  local samples = prefix .. ARGV[a]
  local bytes, page = 0, {ARGV[a], '0'}
  for _, field in ipairs(redis.call('HKEYS', samples)) do
    if string.sub(field, 1, 1) == 'p' then
      local index = string.sub(field, 2)
      local held = redis.call('HGET', samples, 'm' .. index)
      if held then
        bytes = bytes + redis.call('HSTRLEN', samples, field)
        page[#page + 1] = index
        page[#page + 1] = held
      end
    end
  end
  if #page > 2 then
    page[2] = text(bytes)
    answer[#answer + 1] = page
  end
end
return answer
