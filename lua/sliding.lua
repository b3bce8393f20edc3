-- Exact sliding window: the log of what was admitted in the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding.rs.
--
-- One entry per admitted call, whatever its cost, holds its time and the running total up to and
-- including it; totals count modulo 2^32. The entries stand in a ring that grows with the log, up
-- to `threshold` of them, so that a call touches the header and one or two entries.
--
-- State    string: header of 34 bytes: head (4), length (4), slots (4), base (4): the total before
--          the first entry, total (4) and time of the last entry (7), time of the first (7);
--          then `slots` entries of 11 bytes: time (7), total (4)

local HEADER, ENTRY, WRAP = 34, 11, 4294967296

local state = call('GETRANGE', key, 0, HEADER - 1)
local head, length, slots, base, total, last, oldest = 0, 0, 0, 0, 0, 0, 0
if #state == HEADER then
  head, length, slots, base, total, last, oldest = struct.unpack('>I4I4I4I4I4I7I7', state)
elseif state ~= '' then
  return foreign()
end
local now = math.max(clock, last)

local function entry(index)
  local from = HEADER + (head + index) % slots * ENTRY
  return struct.unpack('>I7I4', call('GETRANGE', key, from, from + ENTRY - 1))
end

-- The first of the entries from `low` on whose time is after `time`, or whose total is at least
-- `sum` above the base. One of them must be.
local function search(low, time, sum)
  local high = length - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local at, upto = entry(middle)
    if at > time and (upto - base) % WRAP >= sum then high = middle else low = middle + 1 end
  end
  return low, entry(low)
end

-- Entries at `now - period` and before have left the window.
local first = 0
if length > 0 and oldest + period <= now then
  if last + period <= now then
    head, length, base, total = 0, 0, 0, 0
  else
    local at, upto = entry(1)
    first = 1
    if at + period <= now then first, at = search(2, now - period, 0) end
    local _, gone = entry(first - 1)
    head, length, base, oldest = (head + first) % slots, length - first, gone, at
  end
end
local used = (total - base) % WRAP

local function write()
  call('SETRANGE', key, 0, struct.pack('>I4I4I4I4I4I7I7', head, length, slots, base, total, last, oldest))
end

local allowed = op == REFUND or cost == 0 or used + cost <= threshold
local retry = 0
if not allowed then
  -- The call fits once all that is too much has left.
  local excess, blocker = used + cost - threshold, oldest
  if excess > 1 then
    local _, at = search(0, 0, excess)
    blocker = at
  end
  retry = blocker + period - clock
  if call('PTTL', key) < 0 then keep(last + period - clock) end
elseif cost > 0 and op == DECIDE then
  if length == slots then
    -- A full ring is written anew in order, twice as large.
    local tail = ''
    if slots > 0 then
      local from = HEADER + head * ENTRY
      tail = call('GETRANGE', key, from, -1) .. call('GETRANGE', key, HEADER, from - 1)
    end
    local grown = math.min(math.max(slots * 2, 8), threshold)
    call('SET', key, string.rep('\0', HEADER) .. tail .. string.rep('\0', (grown - slots) * ENTRY), 'KEEPTTL')
    head, slots = 0, grown
  end
  if length == 0 then oldest = now end
  total, last, used = (total + cost) % WRAP, now, used + cost
  call('SETRANGE', key, HEADER + (head + length) % slots * ENTRY, struct.pack('>I7I4', now, total))
  length = length + 1
  write()
  keep(last + period - clock)
elseif cost > 0 and op == REFUND and slots > 0 then
  -- The newest go first; the last of those that stay may give up a part.
  used = math.max(used - cost, 0)
  if used == 0 then
    call('DEL', key)
  else
    local index, at = search(0, 0, used)
    total, last, length = (base + used) % WRAP, at, index + 1
    local from = HEADER + (head + index) % slots * ENTRY
    call('SETRANGE', key, from, struct.pack('>I7I4', last, total))
    write()
    keep(last + period - clock)
  end
end

return reply(allowed, math.max(threshold - used, 0), retry, used == 0 and 0 or last + period - clock)
