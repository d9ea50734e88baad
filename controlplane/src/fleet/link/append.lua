-- A batch more in the log, if it is the one behind the last of its origin. Answers the number of the last one now.
-- KEYS: log, last numbers. ARGV: origin, number, events.
local function of(key, kind)
  local held = redis.call('TYPE', key).ok
  if held ~= 'none' and held ~= kind then redis.call('DEL', key) end
end
of(KEYS[1], 'stream')
of(KEYS[2], 'hash')
local last = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0') or 0
if tonumber(ARGV[2]) ~= last + 1 then return last end
redis.call('XADD', KEYS[1], '*', 'o', ARGV[1], 'n', ARGV[2], 'e', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return last + 1
