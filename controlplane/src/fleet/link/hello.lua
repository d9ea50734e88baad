-- Finds the fleet or founds it. Answers its generation, the number of the last batch of this origin, what the log
-- has at the cursor, whether it was never cut, the time in milliseconds, and what the connection of that last batch
-- has said hello with.
-- From now on this connection alone appends for this origin.
-- KEYS: meta, log, last numbers. ARGV: origin, generation to found it with, which no other connection has, cursor.
local function of(key, kind)
  local held = redis.call('TYPE', key).ok
  if held ~= 'none' and held ~= kind then redis.call('DEL', key) end
end
of(KEYS[1], 'hash')
of(KEYS[2], 'stream')
of(KEYS[3], 'hash')
local format = redis.call('HGET', KEYS[1], 'format')
if format and format ~= '1' then return {format} end
local generation = redis.call('HGET', KEYS[1], 'generation') or ''
if #generation > 32 or not string.match(generation, '^%x+$') then
  generation = ARGV[2]
  redis.call('DEL', KEYS[2], KEYS[3])
  redis.call('HSET', KEYS[1], 'format', '1', 'generation', generation)
end
redis.call('HSET', KEYS[3], ARGV[1] .. '#', ARGV[2])
local last, by = string.match(redis.call('HGET', KEYS[3], ARGV[1]) or '', '^(%d+) ?(%x*)$')
local time = redis.call('TIME')
return {
  '1',
  generation,
  tonumber(last) or 0,
  redis.call('XRANGE', KEYS[2], ARGV[3], ARGV[3]),
  redis.call('HGET', KEYS[1], 'trimmed') and 0 or 1,
  tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000),
  by or '',
}
