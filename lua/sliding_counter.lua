-- Sliding counter: the counts of two adjacent windows, the older one weighted by what of it still
-- overlaps the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding_counter.rs.
--
-- State    string of 15 bytes: start (7), previous (4), current (4)
-- ARGV[1]  after the prelude's: grain (7): microseconds in which the overlap is counted,
--          span (7): the period in grains, rounded up

local grain, span = struct.unpack('>I7I7', arg, rest)

local state = call('GET', key)
local since, previous, current = 0, 0, 0
if state then
  if #state ~= 15 then return foreign() end
  since, previous, current = struct.unpack('>I7I4I4', state)
end
local now = math.max(clock, since)
local lag = now - clock
local elapsed = now % period
local start = now - elapsed
if since < start then
  previous = since + period >= start and current or 0
  current = 0
end

-- How far into a window a count weighs no more than `room`, capped at the whole period.
local function until_fits(count, room)
  return math.min(grain * (span - math.min(math.floor(room * span / count), span)), period)
end

-- estimate = previous * (1 - elapsed / period) + current, times `span` to stay whole.
local overlap = span - math.floor(elapsed / grain)
local room = threshold - current - cost
local allowed = op == REFUND or cost == 0 or (room >= 0 and previous * overlap <= room * span)
local retry = 0
if not allowed then
  if room >= 0 then
    retry = until_fits(previous, room) - elapsed + lag -- as the previous window fades
  else
    retry = period - elapsed + until_fits(current, threshold - cost) + lag -- as this one fades
  end
elseif cost > 0 and op ~= PEEK then
  if op == REFUND then
    previous = math.max(previous - math.max(cost - current, 0), 0)
    current = math.max(current - cost, 0)
  else
    current = current + cost
  end
end

local reset = 0
if current > 0 then
  reset = 2 * period - elapsed + lag
elseif previous > 0 then
  reset = period - elapsed + lag
end
if not allowed then
  if call('PTTL', key) < 0 then keep(reset) end
elseif cost > 0 and op ~= PEEK then
  if reset == 0 then
    call('DEL', key)
  else
    call('SETRANGE', key, 0, struct.pack('>I7I4I4', start, previous, current))
    keep(reset)
  end
end

local free = math.max(threshold - current, 0) * span - previous * overlap
return reply(allowed, math.max(math.floor(free / span), 0), retry, reset)
