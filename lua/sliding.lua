-- Exact sliding window: the log of what was admitted in the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding/mod.rs.
--
-- A call adds one record to the log, whatever its cost. The newest records are in a ring inside the
-- state; the ring grows with the log. A full ring of 4,096 records becomes a segment: a key of its own.
-- The state then keeps the first time and the units of each segment in a directory. So a call reads and
-- writes parts of the state and of one or two segments, however long the log is. What nearly all calls need
-- is here; the rest is in `lua/segments.lua`.
--
-- State    string: header of 31 bytes: its beginning (7), head: the first slot in use (2), length:
--          the slots in use (2), slots (2), used: the units in the log (4), time of the last record (7)
--          and of the first (7). A log that has or had segments goes on with 24 bytes: number of the
--          first segment (6), count of segments (4), offset: records of the first segment that are
--          gone (2), front: its units that still count (4), filed: units in all segments (4), first:
--          records of the directory that are gone (4). Then the ring, then the directory: of each the
--          records, and behind them the sum (4) of each block of 64 records
-- Record   time (7), cost (4); in the directory the first time and the units of a segment
-- Segment  string: 4,096 records, and their sums
-- arg      threshold (4), period (7)
-- moment   when units were charged that are returned

local threshold, period = unpack('>I4I7', arg, from)
-- The versions of a state without segments, and of one with a directory.
local SHORT, LONG = 2, 130

-- Each call.
local state = call('GETRANGE', key, '0', '54')
local start, head, length, slots, used, last, oldest = 31, 0, 0, 0, 0, 0, 0
local number, count, offset, front, filed, first = 0, 0, 0, 0, 0, 0
version = SHORT
if state ~= '' then
  if #state < 31 then return { err = BADSTATE } end
  version, lives, head, length, slots, used, last, oldest = unpack('>I1I6I2I2I2I4I7I7', state)
  if version == LONG and #state == 55 then
    start = 55
    number, count, offset, front, filed, first = unpack('>I6I4I2I4I4I4', state, 32)
  elseif version ~= SHORT then
    return { err = BADSTATE }
  end
end
local now = clock < last and last or clock
local base = count > 0 and (string.find(key, '{', 1, true) and key or key .. '{' .. key .. '}') .. ':'

-- Segments that have left, as far as this call removes them; the others expire.
local left

-- Records at `now - period` and before have left the window.
local expired = used > 0 and oldest + period <= now
if expired then
  local from, behind = start + head * 11, slots - head
  if last + period <= now then
    left = {}
    for index = math.max(count - 16, 0), count - 1 do left[#left + 1] = base .. number + index end
    head, length, used, count, expired = 0, 0, 0, 0, false
    if version == LONG then version, start, slots = SHORT, 31, 0 end
  else
    -- Nearly always it is one.
    if count > 0 then from, behind = offset * 11, 4096 - offset end
    if behind > 1 then
      local two = call('GETRANGE', count > 0 and base .. number or key, from, from + 21)
      if #two == 22 then
        local _, units, at = unpack('>I7I4I7', two)
        if at + period > now and (count == 0 or units <= front) then
          used, oldest, expired = used - units, at, false
          if count > 0 then
            offset, front, filed = offset + 1, front - units, filed - units
          else
            head, length = (head + 1) % slots, length - 1
          end
        end
      end
    end
  end
end

-- The slow paths, made for the calls that need them.
local expire, grow, cut, advance, blocker
local fits = used + cost <= threshold
if expired or op == REFUND or op == RETURN or used + cost > threshold + 1 or slots >= 64 and length == slots and fits then
  -- lua/segments.lua stands here.
end
if expired then expire(now - period) end

allowed = op == REFUND or op == RETURN or cost == 0 or used + cost <= threshold
if not allowed then
  -- The call fits once all that is too much has left.
  local excess, at = used + cost - threshold, oldest
  if excess > 1 then at = blocker(excess) end
  retry = at + period - clock
elseif cost > 0 and op == DECIDE then
  if length == slots and slots >= 64 then
    grow()
  elseif length == slots then
    -- A small ring that is full is written anew in order, twice as large; no block of it is full.
    local ring, size = '', slots == 0 and 8 or slots * 2
    if slots < threshold and threshold < size then size = threshold end
    if slots > 0 then
      local from = start + head * 11
      ring = call('GETRANGE', key, from, -1) .. call('GETRANGE', key, start, from - 1)
    end
    local rest = (size - slots) * 11 + (size < 64 and 0 or 4)
    call('SET', key, pack('>I1I6', version, lives) .. string.rep('\0', 24) .. ring .. string.rep('\0', rest), 'KEEPTTL')
    head, slots = 0, size
  end
  if used == 0 then oldest = now end
  last, used = now, used + cost
  local slot = (head + length) % slots
  local from = start + slot * 11
  call('SETRANGE', key, from, pack('>I7I4', now, cost))
  length = length + 1
  -- The last of a block writes the sum of it, unless some of it is gone.
  if slot % 64 == 63 and length >= 64 then
    local block, sum = call('GETRANGE', key, from - 693, from + 10), 0
    for at = 8, 704, 11 do sum = sum + unpack('>I4', block, at) end
    call('SETRANGE', key, start + slots * 11 + (slot - 63) / 16, pack('>I4', sum))
  end
elseif cost > 0 and op == REFUND and state ~= '' then
  -- The newest go first; the last of those that stay may give up a part.
  used = math.max(used - cost, 0)
  cut()
elseif cost > 0 and op == RETURN and state ~= '' and moment + period > now then
  -- The oldest go first: the units that are left leave no earlier than those really used.
  advance(math.min(cost, used))
end
if allowed and cost > 0 and op ~= PEEK and (slots > 0 or state ~= '') then
  changed = pack('>I2I2I2I4I7I7', head, length, slots, used, last, oldest)
  if version == LONG then
    changed = changed .. pack('>I6I4I2I4I4I4', number, count, offset, front, filed, first)
  end
  -- A slot of a cluster that moves may have taken it along already.
  for index = 1, left and #left or 0 do redis.pcall('UNLINK', left[index]) end
end

if used < threshold then remaining = threshold - used end
if used > 0 then reset = last + period - clock end
