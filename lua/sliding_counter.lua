-- Sliding counter: the counts of two adjacent windows, the older one weighted by what of it still
-- overlaps the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding_counter.rs.
--
-- State    string of 22 bytes: its beginning (7), start (7), previous (4), current (4)
-- arg      after the prelude's: grain (7): microseconds in which the overlap is counted,
--          span (7): the period in grains, rounded up

local grain, span = struct.unpack('>I7I7', arg, rest)

local state = call('GET', key)
local since, previous, current = 0, 0, 0
if state then
  if #state ~= 22 or string.byte(state) ~= VERSION then return { err = BADSTATE } end
  since, previous, current = struct.unpack('>I7I4I4', state, 8)
end
local now = clock < since and since or clock
local lag = now - clock
local elapsed = now % period
local start = now - elapsed
if since < start then
  previous = since + period >= start and current or 0
  current = 0
end

-- estimate = previous * (1 - elapsed / period) + current, times `span` to stay whole.
local overlap = span - math.floor(elapsed / grain)
local room = threshold - current - cost
allowed = op >= REFUND or cost == 0 or (room >= 0 and previous * overlap <= room * span)
if not allowed then
  -- The call fits when the previous window has faded so far, or in the next window this one.
  local fading, base = previous, -elapsed
  if room < 0 then fading, room, base = current, threshold - cost, period - elapsed end
  local fits = math.min(math.floor(room * span / fading), span)
  retry = base + math.min(grain * (span - fits), period) + lag
elseif cost > 0 and op ~= PEEK then
  if op == REFUND then
    previous = math.max(previous - math.max(cost - current, 0), 0)
    current = math.max(current - cost, 0)
  elseif op == RETURN then
    -- To the window that has counted it.
    local charged = struct.unpack('>I7', arg, rest + 14)
    if charged >= start then
      current = math.max(current - cost, 0)
    elseif charged + period >= start then
      previous = math.max(previous - cost, 0)
    end
  else
    current = current + cost
  end
  changed = struct.pack('>I7I4I4', start, previous, current)
end

local free = (threshold - current) * span - previous * overlap
if current < threshold and free > 0 then remaining = math.floor(free / span) end
if current > 0 then
  reset = 2 * period - elapsed + lag
elseif previous > 0 then
  reset = period - elapsed + lag
end
