-- Sliding counter: the counts of two adjacent windows, the older one weighted by what of it still
-- overlaps the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding_counter.rs.
--
-- State    string of 22 bytes: its beginning (7), start (7), previous (4), current (4)
-- arg      threshold (4), period (7), grain (7): microseconds in which the overlap is counted,
--          span (7): the period in grains, rounded up
-- moment   when units were charged that are returned

local threshold, period, grain, span = unpack('>I4I7I7I7', arg, from)

-- Each call.
local state = call('GET', key)
local since, previous, current = 0, 0, 0
if state then
  if #state ~= 22 then return { err = BADSTATE } end
  version, lives, since, previous, current = unpack('>I1I6I7I4I4', state)
  if version ~= VERSION then return { err = BADSTATE } end
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
local overlap = span - (elapsed - elapsed % grain) / grain
local room = threshold - current - cost
allowed = op == REFUND or op == RETURN or cost == 0 or (room >= 0 and previous * overlap <= room * span)
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
    if moment >= start then
      current = math.max(current - cost, 0)
    elseif moment + period >= start then
      previous = math.max(previous - cost, 0)
    end
  else
    current = current + cost
  end
  changed = pack('>I7I4I4', start, previous, current)
end

local free = (threshold - current) * span - previous * overlap
if current < threshold and free > 0 then remaining = (free - free % span) / span end
if current > 0 then
  reset = 2 * period - elapsed + lag
elseif previous > 0 then
  reset = period - elapsed + lag
end
