-- Counts of one instance, merged once each. All keys are read before any is written: a script that ends in the
-- middle is not rolled back.
-- KEYS: last numbers, sums. ARGV: origin, number, generation, generation where there is none, then of each sum
-- what is added and for how many milliseconds it is kept.
-- Answers the generation, the last number now, and the sums where it is the generation asked for.
local numbers, origin, seq = KEYS[1], ARGV[1], tonumber(ARGV[2])
local held = redis.call('TYPE', numbers).ok
if held ~= 'none' and held ~= 'hash' then redis.call('DEL', numbers) end
local generation = redis.call('HGET', numbers, 'g')
if not generation or #generation ~= 8 then
  generation = ARGV[4]
  redis.call('DEL', numbers)
  redis.call('HSET', numbers, 'g', generation)
end
local last = tonumber(redis.call('HGET', numbers, origin) or '0') or 0
if generation ~= ARGV[3] or (seq ~= last + 1 and seq ~= last) then return {generation, last} end
local is_new = seq == last + 1
local mine = tonumber(generation, 16)
local minute = math.floor(tonumber(redis.call('TIME')[1]) / 60)
local spans = {1, 60, 1440}
local function open(text, from)
  local epoch, at, known = struct.unpack('>I6I4B', text, from)
  local windows = {}
  for place = from + 11, #text, 12 do
    local current, previous = struct.unpack('>I6I6', text, place)
    windows[#windows + 1] = {current, previous}
  end
  return {epoch = epoch, at = at, known = known, windows = windows}
end
local function roll(sum, to)
  for place, window in ipairs(sum.windows) do
    local span = spans[(place - 1) % 3 + 1]
    local behind = math.floor(to / span) - math.floor(sum.at / span)
    if behind == 1 then window[2] = window[1] end
    if behind > 1 then window[2] = 0 end
    if behind > 0 then window[1] = 0 end
  end
  sum.at = to
end
local sums = {}
for i = 2, #KEYS do
  local text = redis.pcall('GET', KEYS[i])
  local more = ARGV[3 + (i - 1) * 2]
  if type(text) == 'string' and #text == #more + 5 and text:byte(1) == 1 and struct.unpack('>I4', text, 2) == mine then
    sums[i] = {text = text, sum = open(text, 6)}
  elseif text then
    sums[i] = {is_wrong = true}
  end
end
local answer = {generation, is_new and seq or last}
for i = 2, #KEYS do
  local more, keep = ARGV[3 + (i - 1) * 2], tonumber(ARGV[4 + (i - 1) * 2])
  local known = sums[i]
  local text = known and known.text or ''
  if is_new then
    local sum, before = open(more, 1), known and known.sum
    if sum.at > minute + 1 or (before and before.epoch > sum.epoch) then
      -- From a clock that is ahead, or counted before a ban that is known here.
    else
      if before then sum.known = math.max(sum.known, before.known) end
      if before and before.epoch == sum.epoch then
        local later = math.max(sum.at, before.at)
        roll(sum, later)
        roll(before, later)
        for place, window in ipairs(sum.windows) do
          local of = before.windows[place]
          window[1] = math.min(window[1] + of[1], 281474976710655)
          window[2] = math.min(window[2] + of[2], 281474976710655)
        end
      end
      local parts = {struct.pack('>BI4I6I4B', 1, mine, sum.epoch, sum.at, sum.known)}
      local counted = sum.known
      for _, window in ipairs(sum.windows) do
        parts[#parts + 1] = struct.pack('>I6I6', window[1], window[2])
        counted = counted + window[1] + window[2]
      end
      text = table.concat(parts)
      if known and known.is_wrong then redis.call('DEL', KEYS[i]) end
      if counted > 0 or known or sum.epoch > 0 then
        redis.call('SET', KEYS[i], text, 'PX', math.max(keep, redis.call('PTTL', KEYS[i])))
      end
    end
  end
  answer[#answer + 1] = text
end
if is_new then redis.call('HSET', numbers, origin, seq) end
return answer
