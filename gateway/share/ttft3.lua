#!lua name=ttft3
-- The engine of gateway/share/hub.py as a function of Redis or Valkey 7 and later: the same answers to the same asks. It
-- also carries switches from host to host.
--
-- FCALL ttft3_ask 1 "ttft3:{FLEET}:processes" PROCESS UNTIL ASKS ROWS executes a batch, and returns ANSWERS, SUMS and BINS.
-- After the time UNTIL it leases nothing. ASKS and ANSWERS are msgpack arrays; the form of each is with its function below.
-- ROWS and SUMS are about rows and slices, BINS about slices. All keys begin with "ttft3:{FLEET}:" and have a TTL, except for "ttft:{FLEET}:live",
-- which is common to all wire versions. A change of meaning is a new version: another name of library, functions and keys.
-- FCALL ttft3_revision 0 returns the revision of this text. To load another one loses the rows.
--
-- The clock is that of the server. Numbers of Lua are exact up to 2^53.

local VERSION = 3
local REVISION = '' -- of this text; replaced by the gateway that loads it
local SILENT_S = 5 -- a process that asks nothing for this long is gone
local LOWER_S = 5 -- without an ask with a lower limit; then a higher one counts
local LACKING_S = 1
local PAUSE_S = 2 -- longer than any process is silent
local BIN_S, BINS_MAX = 2, 60
local FORGET_WINDOWS, FORGET_S_MAX = 10, 3600
local OWED_MAX, WASTES_MAX, WASTE_GRAIN = 0.25, 64, 1 / 32
local PROCESSES_MAX, NAMES_MAX, ROW_MAX, SWITCHES_MAX = 4096, 4096, 64, 1024
local ROWS_MAX, ROWS_FREE_MAX, EXACT = 32768, 8192, 2^54
local SQUARE_MAX = ROW_MAX * EXACT * EXACT -- sum of the squares of the changes of a row
local GONE_MAX = 4 -- silent processes that one ask removes
local COUNTED_S = 0.5 -- time for which the number of processes is taken as known
local KEPT_S = 60 -- TTL of what belongs to processes
local NONE = {}

local function call(...) -- redis.call is missing while the library is loaded
  return redis.call(...)
end

local function now()
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local function silent(key, since_ms)
  return call('ZRANGE', key, '-inf', since_ms, 'BYSCORE', 'LIMIT', 0, GONE_MAX)
end

local function keep(key, ttl) -- sets a TTL that is shorter or missing
  if call('TTL', key) < ttl then call('EXPIRE', key, ttl) end
end

-- processes

local function leave_slots(at, process)
  local held = call('HGET', at, '@' .. process)
  if held then
    call('HINCRBY', at, 'sum', -held)
    call('HDEL', at, '@' .. process)
  end
  call('ZREM', at .. ':lacking', process)
end

local function gone(fleet, process)
  call('ZREM', fleet .. 'seen', process)
  call('ZREM', fleet .. 'switches:read', process)
  for _, key in ipairs(call('SMEMBERS', fleet .. 'of:' .. process)) do leave_slots(fleet .. key, process) end
  call('DEL', fleet .. 'of:' .. process)
end

local function ms(at_s) -- a score in whole milliseconds is compared much faster than one with a fraction
  return string.format('%.0f', 1000 * at_s)
end

local function shift(key, at_s) -- after a pause of the server: its processes were not silent
  local last = call('ZRANGE', key, 0, 0, 'REV', 'WITHSCORES')
  local paused_s = last[2] and at_s - last[2] / 1000 or 0
  if paused_s > PAUSE_S then
    local all = call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #all, 2 do call('ZADD', key, ms(all[i + 1] / 1000 + paused_s), all[i]) end
  end
end

local function live_key(fleet)
  return 'ttft' .. fleet:sub(fleet:find(':', 1, true), -1) .. 'live'
end

local SEEN = {} -- by fleet: what `see` has found last, and when each process was counted

-- Counts the asking process. Each wire version has its own buckets, and the part of each limit that it has of the processes.
-- Returns the number of processes, and the parts of all lower versions, and of the lower versions and this one.
local function counted(fleet, process, at_s)
  local key, live = fleet .. 'seen', live_key(fleet)
  local lower, others, own, own_s, last_s = 0, 0, 0, 0, 0
  local found = call('HGETALL', live)
  for i = 1, #found, 2 do
    local version, processes, seen_s = tonumber(found[i]), found[i + 1]:match('(%S+) (%S+)')
    processes, seen_s = tonumber(processes), tonumber(seen_s)
    last_s = math.max(last_s, seen_s)
    if version == VERSION then
      own, own_s = processes, seen_s
    elseif math.abs(at_s - seen_s) < SILENT_S then
      others = others + processes
      if version < VERSION then lower = lower + processes end
    end
  end
  if at_s - last_s > PAUSE_S then shift(key, at_s) end
  for _, each in ipairs(call('ZRANGE', key, '(' .. ms(at_s), '+inf', 'BYSCORE')) do
    call('ZADD', key, ms(at_s), each) -- the clock has gone back: a process that has ended must not be counted until its time
  end
  call('ZADD', key, ms(at_s), process)
  for _, each in ipairs(silent(key, ms(at_s - SILENT_S))) do gone(fleet, each) end
  local processes = call('ZCARD', key)
  if processes > PROCESSES_MAX then
    gone(fleet, call('ZRANGE', key, 0, 0)[1])
    processes = processes - 1
  end
  if own ~= processes or at_s >= own_s + 1 or at_s < own_s then
    call('HSET', live, VERSION, string.format('%d %.6f', processes, at_s))
    call('EXPIRE', live, KEPT_S)
    call('EXPIRE', key, KEPT_S)
  end
  local oldest = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return {processes, lower / (processes + others), (lower + processes) / (processes + others),
    from_s = at_s, until_s = math.min(at_s + COUNTED_S, oldest[2] / 1000 + SILENT_S)}
end

-- Notes a process once in COUNTED_S, and counts all as often: in between, the last count holds, unless a process may have
-- become silent since, or is new.
local function see(fleet, process, at_s)
  local seen = SEEN[fleet]
  if not seen or at_s < seen.count.from_s or at_s >= seen.renewed_s + KEPT_S then
    seen = {renewed_s = at_s, count = {from_s = at_s, until_s = 0}, processes = {}}
    SEEN[fleet] = seen
  end
  local last_s = seen.processes[process]
  local is_noted = last_s and at_s < last_s + COUNTED_S
  if at_s >= seen.count.until_s or not is_noted and (not last_s or call('ZADD', fleet .. 'seen', ms(at_s), process) > 0) then
    seen.count, is_noted = counted(fleet, process, at_s), false
  end
  if not is_noted then seen.processes[process] = at_s end
  return unpack(seen.count)
end

-- limits

-- Time of the first call of this library: what has another one was written before a start of the server, or at another
-- server, and may be older than what processes have seen.
local RUN

local function lowest(value, asked_s, asked, at_s) -- returns the lowest of the limits that processes ask with
  if asked <= value or at_s >= asked_s + LOWER_S then return asked, at_s end
  return value, asked_s
end

local function next_number(fleet, name, at_s)
  local number = math.max(tonumber(call('GET', fleet .. name) or 0) + 1, math.floor(1000 * at_s))
  call('SET', fleet .. name, string.format('%.0f', number), 'EX', FORGET_S_MAX)
  return number
end

-- What full buckets waste, and what is reported late: gateway/share/debts.py has the reasons. Lists of {start, end, amount}.

local function bound(wasted)
  while #wasted > WASTES_MAX do
    local joined, half = {}, math.floor(#wasted / 4) * 2
    for i = 1, half, 2 do
      local one, other = wasted[i], wasted[i + 1]
      joined[#joined + 1] = {one[1], other[2], one[3] + other[3]}
    end
    for i = half + 1, #wasted do joined[#joined + 1] = wasted[i] end
    wasted = joined
  end
  return wasted
end

local function waste(wasted, start_s, end_s, amount, window_s)
  local last = wasted[#wasted]
  if last and end_s - last[1] <= WASTE_GRAIN * window_s then
    last[2], last[3] = end_s, last[3] + amount
    return wasted
  end
  wasted[#wasted + 1] = {start_s, end_s, amount}
  return bound(wasted)
end

local function waste_given_back(wasted, amount, rate, at_s)
  if rate == 0 then return wasted end
  local last, start_s, end_s, before = wasted[#wasted], at_s, at_s, 0
  if last and last[2] > at_s - amount / rate then
    start_s, end_s, before = unpack(table.remove(wasted))
  end
  start_s = start_s - amount / rate
  if #wasted > 0 then start_s = math.max(start_s, wasted[#wasted][2]) end
  wasted[#wasted + 1] = {start_s, end_s, before + amount}
  return bound(wasted)
end

-- Charges reported amounts to what was wasted after them. Returns what remains for the bucket, and what is still wasted.
local function absorb(wasted, reported)
  local owed, rest, place, left = 0, {}, 0, 0
  local from_s, to_s
  local function advance()
    place = place + 1
    if reported[place] then
      from_s, to_s, left = unpack(reported[place])
    else
      from_s, to_s = math.huge, math.huge
    end
  end
  local function spent(time_s)
    local sum = 0
    while to_s <= time_s and reported[place] do
      sum = sum + left
      advance()
    end
    if from_s < time_s and time_s < to_s and to_s < math.huge then
      local part = left * (time_s - from_s) / (to_s - from_s)
      sum, left, from_s = sum + part, left - part, time_s
    end
    return sum
  end
  advance()
  for _, each in ipairs(wasted) do
    local start_s, end_s, amount = unpack(each)
    local at_s, waste_rate = start_s, end_s > start_s and amount / (end_s - start_s) or 0
    while at_s < end_s do
      owed = owed + spent(at_s)
      local cut_s = math.min(end_s, from_s > at_s and from_s or to_s)
      local spent_rate = from_s > at_s and 0 or left / (to_s - from_s)
      local rate = waste_rate - spent_rate
      if owed > 0 and rate > 0 and at_s < at_s + owed / rate and at_s + owed / rate < cut_s then
        cut_s = at_s + owed / rate -- all is repaid
      end
      if spent_rate ~= 0 then owed = owed + spent(cut_s) end
      local room = waste_rate * (cut_s - at_s)
      local used = math.min(owed, room)
      owed = owed - used
      if room > used then rest[#rest + 1] = {at_s, cut_s, room - used} end
      at_s = cut_s
    end
  end
  return owed + spent(math.huge), bound(rest)
end

local function lowered(state, hint, hint_s, amount, rate) -- uses what a process has seen, or supposes, if it is lower
  if hint_s < state.kept_s then return end
  if hint_s >= state.created_s then -- of a process that has started without the server
    local supposed, wasted = hint + (state.left_s - hint_s) * rate, state.wasted
    if supposed < state.left then
      state.left = supposed
      while wasted[1] and wasted[#wasted][2] > hint_s do
        local start_s, end_s, amount = unpack(table.remove(wasted))
        if start_s < hint_s then
          wasted[#wasted + 1] = {start_s, hint_s, amount * (hint_s - start_s) / (end_s - start_s)}
        end
      end
    end
    return
  end
  local since_s = math.max(state.base_s, hint_s)
  local counted = math.min(amount, state.base + (since_s - state.base_s) * rate)
  local seen = math.min(amount, hint + (since_s - hint_s) * rate)
  if seen < counted then
    local owed
    state.base, state.base_s = seen, since_s
    owed, state.wasted = absorb(state.wasted, {{since_s, since_s, counted - seen}})
    state.left = state.left - owed
  end
end

-- {key, amount, window_s, want, least, beyond, hint, epoch, drained, hint_age_s, {age of start, age of end, amount, ...},
--  report}
-- -> {granted, left, wait_s, epoch, amount}
local function bucket(fleet, process, at_s, ask, from, to)
  local key, window_s, want, least, beyond, hint, epoch = ask[2], ask[4], ask[5], ask[6], ask[7], ask[8], ask[9]
  local asked, hint_s, spent, report = ask[3] * (to - from), at_s - ask[11], ask[12], ask[13] or 0
  local forget_s = math.min(FORGET_WINDOWS * window_s, FORGET_S_MAX)
  local at = fleet .. 'b:' .. key
  local packed = call('GET', at)
  local state = packed and cmsgpack.unpack(packed)
  if not state or at_s >= state.left_s + forget_s then
    local left, left_s = asked, at_s
    if hint then
      left, left_s = math.min(hint, asked), hint_s
    elseif to - from < 1 then
      left = 0
    elseif #spent > 0 then
      left_s = at_s - forget_s -- it was full until then: each report is charged at its time
    end
    local born = next_number(fleet, 'epoch', at_s)
    state = {amount = asked, asked_s = at_s, born = born, epoch = born, run = RUN, created_s = at_s, kept_s = 0,
      base = left, base_s = left_s, left = left, left_s = left_s, wasted = {}}
  elseif state.run ~= RUN then
    state.epoch, state.run, state.created_s = next_number(fleet, 'epoch', at_s), RUN, at_s
    state.base, state.base_s, state.kept_s = state.left, state.left_s, state.left_s
  end
  local amount
  amount, state.asked_s = lowest(state.amount, state.asked_s, asked, at_s)
  state.amount = amount
  local rate = window_s == math.huge and 0 or amount / window_s
  local refill = math.max(0, at_s - state.left_s) * rate
  local over = math.min(refill, state.left + refill - amount)
  if over > 0 then state.wasted = waste(state.wasted, at_s - over / rate, at_s, over, window_s) end
  state.left, state.left_s = math.min(amount, state.left + refill), at_s
  if hint and epoch ~= state.epoch then lowered(state, hint, hint_s, amount, rate) end
  local last, number = fleet .. 'r:' .. process .. ':' .. key, string.format('%.0f %.0f', report, state.born)
  if #spent > 0 and (report == 0 or call('GET', last) ~= number) then
    call('SET', last, number, 'EX', math.ceil(forget_s) + 1)
    local reported, owed = {}, nil
    for i = 1, #spent, 3 do reported[#reported + 1] = {at_s - spent[i], at_s - spent[i + 1], spent[i + 2]} end
    owed, state.wasted = absorb(state.wasted, reported)
    state.left = math.max(state.left - owed, math.min(state.left, -OWED_MAX * amount))
  end
  state.left = state.left - beyond
  if state.left > amount then
    state.wasted = waste_given_back(state.wasted, state.left - amount, rate, at_s)
    state.left = amount
  end
  if ask[10] then state.left = math.min(0, state.left) end
  least = math.min(least, amount)
  local granted, wait_s, missing = 0, 0, least - state.left
  if missing > 1e-9 * amount then
    wait_s = rate > 0 and missing / rate or math.huge
  else
    granted = math.min(math.max(want, least), math.max(0, state.left))
    state.left = state.left - granted
  end
  call('SET', at, cmsgpack.pack(state), 'PX', math.ceil(1000 * forget_s) + 1000)
  return {granted, state.left, wait_s, state.epoch, amount}
end

-- {key, limit, held, want, others} -> {granted, others, limit, wanted}
local function slots(fleet, process, at_s, ask, from, to)
  local key, held, want = ask[2], ask[4], ask[5]
  local asked = math.floor(ask[3] * to + 1e-9) - math.floor(ask[3] * from + 1e-9)
  local at, me = fleet .. 'c:' .. key, '@' .. process
  local state = call('HMGET', at, 'limit', 'asked_s', 'unknown', 'unknown_s', 'sum', me, 'run')
  if state[7] and state[7] ~= RUN then
    state = {}
    call('DEL', at)
  end
  local limit, asked_s = tonumber(state[1] or asked), tonumber(state[2] or at_s)
  local unknown, unknown_s = tonumber(state[3] or held + (ask[6] or 0)), tonumber(state[4] or at_s + SILENT_S)
  limit, asked_s = lowest(limit, asked_s, asked, at_s)
  if at_s >= unknown_s then unknown = 0 end
  if not state[6] then unknown = math.max(0, unknown - held) end
  local others = tonumber(state[5] or 0) - tonumber(state[6] or 0) + unknown
  local granted = math.max(0, math.min(want, limit - others - held))
  local mine = held + granted
  call('HSET', at, 'limit', limit, 'asked_s', asked_s, 'unknown', unknown, 'unknown_s', unknown_s,
    'sum', others - unknown + mine, 'run', RUN)
  if mine > 0 then
    call('HSET', at, me, mine)
    call('SADD', fleet .. 'of:' .. process, 'c:' .. key)
    call('EXPIRE', fleet .. 'of:' .. process, 2 * KEPT_S)
  elseif state[6] then
    call('HDEL', at, me)
    call('SREM', fleet .. 'of:' .. process, 'c:' .. key)
  end
  call('EXPIRE', at, KEPT_S)
  call('ZREM', at .. ':lacking', process)
  call('ZREMRANGEBYSCORE', at .. ':lacking', '-inf', at_s - LACKING_S)
  local wanted = call('ZCARD', at .. ':lacking') > 0
  if granted < want then
    call('ZADD', at .. ':lacking', at_s, process)
    call('EXPIRE', at .. ':lacking', KEPT_S)
  end
  return {granted, others, limit, wanted}
end

-- rows
--
-- What processes have now changes ten times a second, and is worthless after seconds: it is in the memory of this library,
-- not in keys. A process sends what has changed, and receives the sums of its rows that have changed since. The server
-- gives a number to each name of a row. What is lost here is sent again: a process that the server does not know, or
-- whose last message it does not have, gets the epoch 0, and sends all its rows with it. A row is {number, value, ...}.
-- Slices have numbers, too. What is added to a slice goes to the present bin, {number, bin, name, sum, ...}, which each
-- process that reads the slice receives once after its end.

local TABLES = {} -- by fleet and database

local function rows_of(name, at_s)
  local rows = TABLES[name]
  if rows and at_s >= rows.used_s - PAUSE_S and rows.free <= math.max(ROWS_FREE_MAX, #rows.sums / 2) then return rows end
  for each, other in pairs(TABLES) do
    if at_s >= other.used_s + KEPT_S then TABLES[each] = nil end
  end
  -- free: numbers of rows that no process has. silent_s: no process is silent before. held, versions, packed: by number;
  -- older, newer: ring of the numbers by version, with 0 between the oldest and the newest. is_new: some rows have the next
  -- version; later: numbers of the rows that have it with the next bin. bins: {sums, size, packed} of the slices by number, by
  -- bin; bin: the present one.
  TABLES[name] = {bin = 0, bins = {}, epoch = math.max(math.floor(1e6 * at_s), rows and rows.epoch + 1 or 0), version = 0, free = 0,
    silent_s = 0, size = 0, processes = {}, numbers = {}, sums = {}, held = {}, versions = {[0] = -1}, packed = {},
    older = {[0] = 0}, newer = {[0] = 0}, is_new = false, later = {}}
  return TABLES[name]
end

local function touch(rows, number) -- gives the next version to a row
  local older, newer = rows.older, rows.newer
  local before = newer[number]
  if before ~= 0 then
    local after, newest = older[number], older[0]
    older[before], newer[after] = after, before
    older[number], newer[number], newer[newest], older[0] = newest, 0, number, number
  end
  rows.versions[number], rows.packed[number], rows.is_new = rows.version + 1, false, true
end

local function hold(rows, number, change)
  local before = rows.held[number]
  rows.held[number] = before + change
  rows.free = rows.free + (before + change == 0 and 1 or 0) - (before == 0 and 1 or 0)
end

local function extend(row, place) -- with zeros; returns the value at the place
  if not (place > 1 and place <= ROW_MAX + 1) then error('out of range') end
  for each = #row + 1, place do row[each] = 0 end
  return row[place]
end

local function trim(sum) -- zeros at the end are not sent
  local last = #sum
  while last > 1 and sum[last] == 0 do
    sum[last] = nil
    last = last - 1
  end
end

local function remove_row(rows, own, number)
  local sum, row = rows.sums[number], own[number]
  extend(sum, #row)
  for place, value in ipairs(row) do sum[place] = sum[place] - value end
  trim(sum)
  own[number] = nil
  hold(rows, number, -1)
  touch(rows, number)
end

local function leave(rows, process)
  local own = rows.processes[process].own
  for number in pairs(own) do remove_row(rows, own, number) end
  rows.processes[process] = nil
  rows.size = rows.size - 1
end

local function leave_silent(rows, process, at_s)
  local oldest_s, left = at_s, 0
  for each, other in pairs(rows.processes) do
    if each ~= process and at_s >= other.seen_s + SILENT_S and left < GONE_MAX then
      leave(rows, each)
      left = left + 1
    else
      oldest_s = math.min(oldest_s, other.seen_s)
    end
  end
  rows.silent_s = oldest_s + SILENT_S
end

local function number_of(rows, name) -- 0 if there are too many
  local number = rows.numbers[name]
  if number or #rows.sums >= ROWS_MAX then return number or 0 end
  number = #rows.sums + 1
  rows.numbers[name], rows.sums[number], rows.held[number], rows.free = number, {number}, 0, rows.free + 1
  local oldest = rows.newer[0]
  rows.older[number], rows.newer[number], rows.older[oldest], rows.newer[0] = 0, oldest, number, number
  rows.versions[number], rows.packed[number] = 0, false
  return number
end

-- {number or name, count, place, change, place, change, ...}: places begin with 2, and a count of 0 removes the row. Adds
-- the numbers of the names to `numbers`. The sums of `later` have the next version only after the end of the present bin.
local function change(rows, own, changes, numbers, later)
  local at, all, waits, type = 1, rows.sums, NONE, type
  if later and later[1] then
    waits = {}
    for _, number in ipairs(later) do waits[number] = true end
  end
  while changes[at] do
    local number, count = changes[at], changes[at + 1]
    if type(number) == 'string' then
      number = number_of(rows, number)
      numbers[#numbers + 1] = number
      if number > 0 then touch(rows, number) end -- its sum is returned
    end
    local last = at + 1 + 2 * count
    if count == 0 then
      if own[number] then remove_row(rows, own, number) end
    elseif number > 0 then
      local sum, row, total = all[number], own[number], 0
      if not row then
        row = {0}
        own[number] = row
        hold(rows, number, 1)
      end
      for i = at + 2, last, 2 do
        local place, value = changes[i], changes[i + 1]
        local own_value, sum_value = row[place] or extend(row, place), sum[place] or extend(sum, place)
        row[place], sum[place] = own_value + value, sum_value + value
        total = total + value * value
      end
      if not (total <= SQUARE_MAX) then error('out of range') end
      if sum[#sum] == 0 then trim(sum) end
      if waits[number] then
        rows.later[number], rows.packed[number] = true, false
      else
        touch(rows, number)
      end
    end
    if not (count >= 0) then error('out of range') end
    at = last + 1
  end
end

local function add(of, number, added, first, last)
  local present = of[number] or {sums = {}, size = 0}
  of[number] = present
  for i = first, last, 2 do
    local name, value = added[i], added[i + 1]
    if not (value >= -EXACT and value <= EXACT) then error('out of range') end
    local sum = present.sums[name]
    if sum or present.size < NAMES_MAX then
      if not sum then present.size = present.size + 1 end
      present.sums[name] = (sum or 0) + value
    end
  end
end

local function begin_bin(rows, at_s) -- a bin that has ended is never added to, also if the clock goes back
  local bin = math.floor(at_s / BIN_S)
  if bin <= rows.bin then return end
  rows.bin = bin
  for each in pairs(rows.bins) do
    if each <= bin - BINS_MAX then rows.bins[each] = nil end
  end
  for number in pairs(rows.later) do touch(rows, number) end
  rows.later = {}
end

-- {number or name, mode, count, name, addend, ...}: the mode is 1 to begin to read the slice, with all its bins, and -1 to
-- end that. Adds the numbers of the names to `numbers`. Returns the slices that the process begins to read.
local function add_to_slices(rows, me, added, numbers)
  local begun, at = {}, 1
  while added[at] do
    local number, mode, last = added[at], added[at + 1], at + 2 + 2 * math.max(0, added[at + 2])
    if type(number) == 'string' then
      number = number_of(rows, number)
      numbers[#numbers + 1] = number
    end
    if number > 0 then
      if last > at + 2 then
        rows.bins[rows.bin] = rows.bins[rows.bin] or {}
        add(rows.bins[rows.bin], number, added, at + 3, last)
      end
      if mode > 0 then begun[number] = true end
      me.reads[number] = mode > 0 or mode == 0 and me.reads[number] or nil
    end
    at = last + 1
  end
  return begun
end

local function add_bin(parts, bin, number, each) -- adds a bin that has ended
  if not each.packed then
    local flat, last = {number, bin}, 2
    for name, sum in pairs(each.sums) do
      flat[last + 1], flat[last + 2] = name, sum
      last = last + 2
    end
    each.packed, each.sums = cmsgpack.pack(flat), nil
  end
  parts[#parts + 1] = each.packed
end

-- Adds the bins that have ended since the last message to `parts`, and all bins of slices that the process begins to read.
local function add_ended(rows, me, begun, parts)
  for bin = math.max(me.bin, rows.bin - BINS_MAX + 1), rows.bin - 1 do
    for number, each in pairs(rows.bins[bin] or NONE) do
      if me.reads[number] and not begun[number] then add_bin(parts, bin, number, each) end
    end
  end
  me.bin = rows.bin
  if next(begun) then
    for bin, of in pairs(rows.bins) do
      for number in pairs(bin < rows.bin and begun or NONE) do
        if of[number] then add_bin(parts, bin, number, of[number]) end
      end
    end
  end
end

local PARTS = {} -- of a reply; used again, because it is large

-- Returns the sums of the rows of a process that have changed since a version, and their number.
local function changed_sums(rows, own, since)
  local count, parts, sums, older, versions, packed = 0, PARTS, rows.sums, rows.older, rows.versions, rows.packed
  local each = older[0]
  while versions[each] > since do
    if own[each] then
      local part = packed[each]
      if not part then
        part = cmsgpack.pack(sums[each])
        packed[each] = part
      end
      count = count + 1
      parts[count] = part
    end
    each = older[each]
  end
  return table.concat(parts, '', 1, count), count
end

local function lost()
  return {0, 0, NONE, 0, 0, 0}, '', ''
end

local function exchanged(name, process, at_s, number, epoch, since, changes, added, later)
  local rows = rows_of(name, at_s)
  rows.used_s = at_s
  begin_bin(rows, at_s)
  if at_s >= rows.silent_s then leave_silent(rows, process, at_s) end
  local me = rows.processes[process]
  if epoch == 0 then
    if me then leave(rows, process) end
    if rows.size >= PROCESSES_MAX then return lost() end
    me = {own = {}, reads = {}, bin = 0}
    rows.processes[process], rows.size, since = me, rows.size + 1, 0
  elseif epoch ~= rows.epoch or not me or number ~= me.number + 1 then
    return lost()
  end
  me.number, me.seen_s = number, at_s
  local numbers, bins = {}, {}
  change(rows, me.own, changes, numbers, later)
  if rows.is_new then rows.version, rows.is_new = rows.version + 1, false end
  local begun = add_to_slices(rows, me, added, numbers)
  local sums, count = changed_sums(rows, me.own, since)
  add_ended(rows, me, begun, bins)
  return {rows.epoch, rows.version, numbers, count, rows.bin, #bins}, sums, table.concat(bins)
end

-- {database, number of the message, epoch, since, changes, additions to slices, numbers of rows of which the changes may wait}
-- in msgpack, with the epoch 0 all rows
-- -> {epoch, version, numbers of the names in the message, number of the sums, present bin, number of bins}, the sums one
-- after another, and the bins
local function exchange(fleet, process, at_s, packed)
  local message = cmsgpack.unpack(packed)
  local name = fleet .. message[1]
  local results = {pcall(exchanged, name, process, at_s, unpack(message, 2))}
  if results[1] then return unpack(results, 2, 4) end
  TABLES[name] = nil -- a part of the message may be counted
  return lost()
end

-- switches

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
local function switches(fleet, process, at_s, ask)
  local at, published = fleet .. 'switches', ask[2]
  for i = 1, #published, 3 do
    local name, value, left_s = published[i], published[i + 1], published[i + 2]
    call('HDEL', at, name)
    local kept = items(at, at_s)
    if #kept >= SWITCHES_MAX then call('HDEL', at, kept[1][3]) end
    local number = next_number(fleet, 'switches:number', at_s)
    call('HSET', at, name, cmsgpack.pack({number, at_s + left_s, value}))
    keep(at, math.ceil(left_s) + 1)
    keep(fleet .. 'switches:number', math.ceil(left_s) + 1)
  end
  local number = tonumber(call('GET', fleet .. 'switches:number') or 0)
  local after, read, list = ask[3] <= number and ask[3] or 0, fleet .. 'switches:read', {}
  call('ZADD', read, after, process)
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

local KINDS = {bucket = bucket, slots = slots, switches = switches}

-- The keys of an ask; without an ask, the keys of the processes.
local function kept(fleet, process, at_s, ask)
  if not ask then return {fleet .. 'seen', live_key(fleet)} end
  local kind, key = ask[1], ask[2]
  if kind == 'bucket' then return {fleet .. 'b:' .. key, fleet .. 'epoch'} end
  if kind == 'slots' then return {fleet .. 'c:' .. key, fleet .. 'c:' .. key .. ':lacking', fleet .. 'of:' .. process} end
  return {fleet .. 'switches', fleet .. 'switches:number', fleet .. 'switches:read'}
end

-- Calls a function. If it fails, its keys are damaged: they are deleted, and it is called again as after a loss.
local function healed(fn, ...)
  local results = {pcall(fn, ...)}
  if results[1] then return unpack(results, 2, 4) end
  call('DEL', unpack(kept(...)))
  return fn(...)
end

-- {{kind, ...}, ...} in msgpack, and a message about rows or '' -> {{answer, ...}, processes, now_s, answer about rows or
-- false} in msgpack, the sums of rows, and the bins of slices
local function ask(keys, args)
  local fleet, process, at_s, answers = keys[1]:sub(1, -10), args[1], now(), {}
  local processes, from, to = healed(see, fleet, process, at_s)
  RUN = RUN or string.format('%.6f', at_s)
  local is_old = at_s > tonumber(args[2]) -- it was sent again meanwhile
  for i, each in ipairs(cmsgpack.unpack(args[3])) do
    local kind = each[1]
    if is_old and (kind == 'bucket' or kind == 'slots') then
      answers[i] = false
    else
      answers[i] = healed(KINDS[kind], fleet, process, at_s, each, from, to)
    end
  end
  local about_rows, sums, bins = false, '', ''
  if args[4] ~= '' then about_rows, sums, bins = exchange(fleet, process, at_s, args[4]) end
  return {cmsgpack.pack({answers, processes, at_s, about_rows}), sums, bins}
end

redis.register_function('ttft3_ask', ask)
redis.register_function{function_name = 'ttft3_revision', callback = function() return REVISION end, flags = {'no-writes'}}
