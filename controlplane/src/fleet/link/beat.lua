-- An instance shows that it lives. Those that have not for three days are forgotten, also those that have left
-- and say nothing since. Answers the time in milliseconds and, of each that says something, the latest first:
-- origin, when, what it says.
-- An engine that was emptied over an open connection knows nothing of its hello: the instance says hello again,
-- and gives the engine what it lacks.
-- KEYS: when, what, last numbers of the log, those of the counts. ARGV: origin, what it says, how many at most,
-- what this connection has said hello with.
local function of(key, kind)
  local held = redis.call('TYPE', key).ok
  if held ~= 'none' and held ~= kind then redis.call('DEL', key) end
end
of(KEYS[1], 'zset')
of(KEYS[2], 'hash')
of(KEYS[3], 'hash')
of(KEYS[4], 'hash')
of(KEYS[5], 'hash')
local connection = redis.call('HGET', KEYS[3], ARGV[1] .. '#')
if not connection then return redis.error_reply('ERR the engine was emptied') end
if connection ~= ARGV[4] then return redis.error_reply('ERR a later connection of this instance is there') end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - 259200000, 'LIMIT', 0, 64)) do
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[2], gone)
  redis.call('HDEL', KEYS[3], gone, gone .. '#')
  redis.call('HDEL', KEYS[4], gone)
  redis.call('HDEL', KEYS[5], gone)
end
-- Of a clock that was ahead: it would seem to live until this one has come so far.
for _, ahead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%d', now), '+inf', 'LIMIT', 0, 64)) do
  redis.call('ZADD', KEYS[1], now, ahead)
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local answer = {now}
local alive = redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for at = 1, #alive, 2 do
  local says = redis.call('HGET', KEYS[2], alive[at])
  if says then
    answer[#answer + 1] = alive[at]
    answer[#answer + 1] = alive[at + 1]
    answer[#answer + 1] = says
  end
end
return answer
