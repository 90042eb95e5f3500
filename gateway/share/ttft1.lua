#!lua name=ttft1
-- The engine of gateway/share/hub.py as a function of Redis or Valkey 7 and later: the same answers to the same asks.
--
-- FCALL ttft1_ask 1 "ttft1:{FLEET}:heads" HEAD ASKS ROWS... executes a batch. ASKS and the reply are msgpack arrays; the
-- form of each is with its function below. ROWS are those of the gauges, in msgpack, in their order. All keys begin with "ttft1:{FLEET}:" and have a TTL, except for "ttft:{FLEET}:live",
-- which is common to all wire versions. A change of meaning is a new version: another name of library, function and keys.
--
-- The clock is that of the server. Numbers of Lua are exact up to 2^53; sums of slices are 64-bit integers in text.

local VERSION = 1
local SILENT_S = 5 -- a head that asks nothing for this long is gone
local LOWER_S = 5 -- without an ask with a lower limit; then a higher one counts
local LACKING_S = 1
local PAUSE_S = 2 -- longer than any head is silent
local BIN_S, BINS_MAX = 5, 24
local FORGET_WINDOWS, FORGET_S_MAX = 1 / (1 - 0.9), 3600
local HEADS_MAX, NAMES_MAX, ROW_MAX, NEWS_MAX = 4096, 4096, 64, 1024
local GONE_MAX = 4 -- silent heads that one ask removes
local KEPT_S = 60 -- TTL of what belongs to heads

local function call(...) -- redis.call is missing while the library is loaded
  return redis.call(...)
end

local function now()
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local function silent(key, since)
  return call('ZRANGE', key, '-inf', since, 'BYSCORE', 'LIMIT', 0, GONE_MAX)
end

local function size(map)
  local number = 0
  for _ in pairs(map) do number = number + 1 end
  return number
end

local function keep(key, ttl) -- sets a TTL that is shorter or missing
  if call('TTL', key) < ttl then call('EXPIRE', key, ttl) end
end

-- heads

local function add(sums, rows, sign) -- a sum is {number of heads with the name, sum at each place}
  for name, row in pairs(rows) do
    local sum = sums[name] or {0}
    sum[1] = sum[1] + sign
    for place, value in ipairs(row) do sum[place + 1] = (sum[place + 1] or 0) + sign * value end
    sums[name] = sum[1] > 0 and sum or nil
  end
end

local function leave_gauge(at, sums, head)
  local rows = call('HGET', at, '@' .. head)
  if rows then
    add(sums, cmsgpack.unpack(rows), -1)
    call('HDEL', at, '@' .. head)
  end
  call('ZREM', at .. ':seen', head)
end

local function sums_of(at)
  local packed = call('HGET', at, 'sums')
  return packed and cmsgpack.unpack(packed) or {}
end

local function leave_slots(at, head)
  local held = call('HGET', at, '@' .. head)
  if held then
    call('HINCRBY', at, 'sum', -held)
    call('HDEL', at, '@' .. head)
  end
  call('ZREM', at .. ':lacking', head)
end

local function gone(fleet, head)
  call('ZREM', fleet .. 'heads', head)
  call('ZREM', fleet .. 'news:read', head)
  for _, key in ipairs(call('SMEMBERS', fleet .. 'of:' .. head)) do
    local at = fleet .. key
    if key:sub(1, 2) == 'c:' then
      leave_slots(at, head)
    elseif call('EXISTS', at) == 1 then
      local sums = sums_of(at)
      leave_gauge(at, sums, head)
      call('HSET', at, 'sums', cmsgpack.pack(sums))
    end
  end
  call('DEL', fleet .. 'of:' .. head)
end

-- Returns the number of heads. `other_s` is the time of the last ask of other wire versions.
local function see(fleet, head, at_s, other_s)
  local key = fleet .. 'heads'
  local last = call('ZRANGE', key, 0, 0, 'REV', 'WITHSCORES')
  local paused_s = last[2] and at_s - last[2] or 0
  if paused_s > PAUSE_S and at_s - other_s > PAUSE_S then -- the server has not run: its heads were not silent
    local all = call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do call('ZADD', key, all[i + 1] + paused_s, all[i]) end
  end
  call('ZADD', key, at_s, head)
  call('EXPIRE', key, KEPT_S)
  call('EXPIRE', fleet .. 'of:' .. head, 2 * KEPT_S)
  for _, each in ipairs(silent(key, at_s - SILENT_S)) do gone(fleet, each) end
  local heads = call('ZCARD', key)
  if heads > HEADS_MAX then
    gone(fleet, call('ZRANGE', key, 0, 0)[1])
    heads = heads - 1
  end
  return heads
end

-- Each wire version has its own buckets, and a part of each limit like its part of the heads. Returns the number of
-- heads, and the parts of all lower versions, and of those and this one.
local function count(fleet, head, at_s)
  local key = 'ttft' .. fleet:sub(fleet:find(':', 1, true), -1) .. 'live'
  local lower, others, other_s, own, own_s = 0, 0, 0, 0, 0
  local found = call('HGETALL', key)
  for i = 1, #found, 2 do
    local version, heads, seen_s = tonumber(found[i]), found[i + 1]:match('(%S+) (%S+)')
    heads, seen_s = tonumber(heads), tonumber(seen_s)
    if version == VERSION then
      own, own_s = heads, seen_s
    elseif at_s < seen_s + SILENT_S then
      others, other_s = others + heads, math.max(other_s, seen_s)
      if version < VERSION then lower = lower + heads end
    end
  end
  local heads = see(fleet, head, at_s, other_s)
  if own ~= heads or at_s >= own_s + 1 or at_s < own_s then
    call('HSET', key, VERSION, string.format('%d %.6f', heads, at_s))
    call('EXPIRE', key, KEPT_S)
  end
  return heads, lower / (heads + others), (lower + heads) / (heads + others)
end

-- limits

local function lowest(value, asked_s, asked, at_s) -- returns the lowest of the limits that heads ask with
  if asked <= value or at_s >= asked_s + LOWER_S then return asked, at_s end
  return value, asked_s
end

local function next_number(fleet, name, at_s)
  local number = math.max(tonumber(call('GET', fleet .. name) or 0) + 1, math.floor(1000 * at_s))
  call('SET', fleet .. name, string.format('%.0f', number), 'EX', FORGET_S_MAX)
  return number
end

-- {key, amount, window_s, want, least, beyond, hint, epoch, drained, saved} -> {granted, left, wait_s, epoch, amount}
local function bucket(fleet, head, at_s, ask, from, to)
  local key, window_s, want, least, beyond, hint, epoch = ask[2], ask[4], ask[5], ask[6], ask[7], ask[8], ask[9]
  local asked = ask[3] * (to - from)
  local forget_s = math.min(FORGET_WINDOWS * window_s, FORGET_S_MAX)
  local at = fleet .. 'b:' .. key
  local packed = call('GET', at)
  local amount, asked_s, born, left, born_left, left_s
  if packed then amount, asked_s, born, left, born_left, left_s = unpack(cmsgpack.unpack(packed)) end
  if not packed or at_s >= left_s + forget_s then
    left = hint and math.min(hint, asked) or (to - from < 1 and 0) or asked
    amount, asked_s, born, born_left, left_s = asked, at_s, next_number(fleet, 'epoch', at_s), left, at_s
  elseif hint and epoch ~= born and hint < born_left then
    left = left - (born_left - hint)
    born_left = hint
  end
  amount, asked_s = lowest(amount, asked_s, asked, at_s)
  local rate = window_s == math.huge and 0 or amount / window_s
  left = math.min(amount, left + math.max(0, at_s - left_s) * rate)
  local change = (epoch == 0 or epoch == born) and -beyond or ask[11] or 0
  left = math.min(amount, left + change)
  if ask[10] then left = math.min(0, left) end
  least = math.min(least, amount)
  local granted, wait_s, missing = 0, 0, least - left
  local answered = left
  if missing > 1e-9 * amount then
    wait_s = rate > 0 and missing / rate or math.huge
  else
    granted = math.min(math.max(want, least), math.max(0, left))
    left = left - granted
    answered = left
  end
  local state = cmsgpack.pack({amount, asked_s, born, left, born_left, at_s})
  call('SET', at, state, 'PX', math.ceil(1000 * forget_s) + 1000)
  return {granted, answered, wait_s, born, amount}
end

-- {key, limit, held, want, others} -> {granted, others, limit, wanted}
local function slots(fleet, head, at_s, ask, from, to)
  local key, held, want = ask[2], ask[4], ask[5]
  local asked = math.floor(ask[3] * to + 1e-9) - math.floor(ask[3] * from + 1e-9)
  local at, me = fleet .. 'c:' .. key, '@' .. head
  local state = call('HMGET', at, 'limit', 'asked_s', 'unknown', 'unknown_s', 'sum', me)
  local limit, asked_s = tonumber(state[1] or asked), tonumber(state[2] or at_s)
  local unknown, unknown_s = tonumber(state[3] or held + (ask[6] or 0)), tonumber(state[4] or at_s + SILENT_S)
  limit, asked_s = lowest(limit, asked_s, asked, at_s)
  if at_s >= unknown_s then unknown = 0 end
  if not state[6] then unknown = math.max(0, unknown - held) end
  local others = tonumber(state[5] or 0) - tonumber(state[6] or 0) + unknown
  local granted = math.max(0, math.min(want, limit - others - held))
  local mine = held + granted
  call('HSET', at, 'limit', limit, 'asked_s', asked_s, 'unknown', unknown, 'unknown_s', unknown_s,
    'sum', others - unknown + mine)
  if mine > 0 then
    call('HSET', at, me, mine)
    if not state[6] then
      call('SADD', fleet .. 'of:' .. head, 'c:' .. key)
      call('EXPIRE', fleet .. 'of:' .. head, 2 * KEPT_S)
    end
  elseif state[6] then
    call('HDEL', at, me)
    call('SREM', fleet .. 'of:' .. head, 'c:' .. key)
  end
  call('EXPIRE', at, KEPT_S)
  call('ZREM', at .. ':lacking', head)
  call('ZREMRANGEBYSCORE', at .. ':lacking', '-inf', at_s - LACKING_S)
  local wanted = call('ZCARD', at .. ':lacking') > 0
  if granted < want then
    call('ZADD', at .. ':lacking', at_s, head)
    call('EXPIRE', at .. ':lacking', KEPT_S)
  end
  return {granted, others, limit, wanted}
end

-- sums

-- {key}, and rows {name: integers} in msgpack -> {heads, {name: sums}}
local function gauge(fleet, head, at_s, ask, packed)
  local at = fleet .. 'g:' .. ask[2]
  local seen, me = at .. ':seen', '@' .. head
  local sums = sums_of(at)
  local old = call('HGET', at, me)
  local changed = old ~= packed
  for _, each in ipairs(silent(seen, at_s - SILENT_S)) do
    if each ~= head then
      leave_gauge(at, sums, each)
      changed = true
    end
  end
  if changed and old then add(sums, cmsgpack.unpack(old), -1) end
  local rows = cmsgpack.unpack(packed)
  if not changed then add(sums, rows, -1) end
  local others = {}
  for name, sum in pairs(sums) do
    local row, any = {}, false
    for place = 2, #sum do
      row[place - 1] = sum[place]
      any = any or sum[place] ~= 0
    end
    if any then others[name] = row end
  end
  local fits = size(rows) + size(sums) <= NAMES_MAX
  for _, row in pairs(rows) do fits = fits and #row <= ROW_MAX end
  if not fits then
    call('HDEL', at, me)
    call('ZREM', seen, head)
    call('HSET', at, 'sums', cmsgpack.pack(sums))
  else
    if changed then
      add(sums, rows, 1)
      call('HSET', at, me, packed, 'sums', cmsgpack.pack(sums))
    end
    if not old then
      call('SADD', fleet .. 'of:' .. head, 'g:' .. ask[2])
      call('EXPIRE', fleet .. 'of:' .. head, 2 * KEPT_S)
    end
    call('ZADD', seen, at_s, head)
  end
  call('EXPIRE', at, KEPT_S)
  call('EXPIRE', seen, KEPT_S)
  return {call('ZCARD', seen), others}
end

-- {key, {name, addend in text, ...}, since} -> {present bin, {bin, {name, sum in text, ...}, ...}}
local function slice(fleet, head, at_s, ask)
  local at, added = fleet .. 's:' .. ask[2] .. ':', ask[3]
  local number = math.floor(at_s / BIN_S)
  if #added > 0 then
    local room = NAMES_MAX - call('HLEN', at .. number)
    for i = 1, #added, 2 do
      if room >= #added / 2 then
        call('HINCRBY', at .. number, added[i], added[i + 1])
      elseif room > 0 or call('HEXISTS', at .. number, added[i]) == 1 then
        call('HINCRBY', at .. number, added[i], added[i + 1])
        room = NAMES_MAX - call('HLEN', at .. number)
      end
    end
    call('EXPIRE', at .. number, BIN_S * (BINS_MAX + 1))
  end
  local bins = {}
  for each = math.max(ask[4] <= number and ask[4] or 0, number - BINS_MAX + 1), number do
    local sums = call('HGETALL', at .. each)
    if #sums > 0 then
      bins[#bins + 1] = each
      bins[#bins + 1] = sums
    end
  end
  return {number, bins}
end

-- news

local function items(at, at_s) -- returns {number, until_s, name, value}, oldest first, and removes what is over
  local found, kept = call('HGETALL', at), {}
  for i = 1, #found, 2 do
    local number, until_s, value = unpack(cmsgpack.unpack(found[i + 1]))
    if at_s >= until_s then
      call('HDEL', at, found[i])
    else
      kept[#kept + 1] = {number, until_s, found[i], value}
    end
  end
  table.sort(kept, function(one, other) return one[1] < other[1] end)
  return kept
end

-- {{name, value, left_s, ...}, after} -> {number, {name, value, left_s, ...}, reached}
local function news(fleet, head, at_s, ask)
  local at, published = fleet .. 'news', ask[2]
  for i = 1, #published, 3 do
    local name, value, left_s = published[i], published[i + 1], published[i + 2]
    call('HDEL', at, name)
    local kept = items(at, at_s)
    if #kept >= NEWS_MAX then call('HDEL', at, kept[1][3]) end
    local number = next_number(fleet, 'news:number', at_s)
    call('HSET', at, name, cmsgpack.pack({number, at_s + left_s, value}))
    keep(at, math.ceil(left_s) + 1)
    keep(fleet .. 'news:number', math.ceil(left_s) + 1)
  end
  local number = tonumber(call('GET', fleet .. 'news:number') or 0)
  local after, read, list = ask[3] <= number and ask[3] or 0, fleet .. 'news:read', {}
  call('ZADD', read, after, head)
  call('EXPIRE', read, KEPT_S)
  if after < number then
    for _, item in ipairs(items(at, at_s)) do
      if item[1] > after then
        list[#list + 1] = item[3]
        list[#list + 1] = item[4]
        list[#list + 1] = item[2] - at_s
      end
    end
  end
  return {number, list, call('ZCOUNT', read, number, '+inf')}
end

local KINDS = {bucket = bucket, slots = slots, slice = slice, news = news}

-- {{kind, ...}, ...} -> {{answer, ...}, heads}
local function ask(keys, args)
  local fleet, head, at_s, answers = keys[1]:sub(1, -6), args[1], now(), {}
  local heads, from, to = count(fleet, head, at_s)
  local rows = 2
  for i, each in ipairs(cmsgpack.unpack(args[2])) do
    if each[1] == 'gauge' then
      rows = rows + 1
      answers[i] = gauge(fleet, head, at_s, each, args[rows])
    else
      answers[i] = KINDS[each[1]](fleet, head, at_s, each, from, to)
    end
  end
  return cmsgpack.pack({answers, heads})
end

redis.register_function('ttft1_ask', ask)
