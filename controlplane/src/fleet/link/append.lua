-- A batch more in the log, if it is the one behind the last of its origin. Answers the number of the last one now.
-- What an earlier connection of this origin has left on its way is refused: its number may be another batch's by now.
-- With its number the batch has what its connection has said hello with: two masters may have two of one number.
-- KEYS: log, last numbers. ARGV: origin, number, events, what this connection has said hello with.
local function of(key, kind)
  local held = redis.call('TYPE', key).ok
  if held ~= 'none' and held ~= kind then redis.call('DEL', key) end
end
of(KEYS[1], 'stream')
of(KEYS[2], 'hash')
local connection = redis.call('HGET', KEYS[2], ARGV[1] .. '#')
if connection and connection ~= ARGV[4] then return redis.error_reply('ERR a later connection of this instance is there') end
local last = tonumber(string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', '^(%d+) ?%x*$')) or 0
if tonumber(ARGV[2]) ~= last + 1 then return last end
redis.call('XADD', KEYS[1], '*', 'o', ARGV[1], 'n', ARGV[2], 'e', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2] .. ' ' .. ARGV[4])
return last + 1
