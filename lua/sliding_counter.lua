-- Sliding counter: the counts of two adjacent windows. The older count is weighted by the part of its window
-- that still overlaps the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding_counter.rs.
--
-- State      string: its beginning (12), see `write_state.lua`; birth (7), 0 if no charge can be settled; start (7);
--            previous (7); current (7)
--
-- call, pack, unpack, key, clock, given, op, cost
--            see `prelude.lua`; cost: the units of the call
-- operand    of the op `return`: the time of the charge; of `settle`: a table of its `birth` and `place`; of `acquire`:
--            the birth of a state without one
-- threshold  units that a period admits
-- period     microseconds
-- grain      the unit in which the overlap is measured, in microseconds
-- span       the period in grains, rounded up
--
-- Returns the arguments of `answer.lua`.
local function sliding_counter(
  call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, grain, span
)
  local VERSION, MOST = 8, 9007199254740991
  local version, lives, closed, birth, since, previous, current = VERSION, 0, 0, 0, 0, 0, 0
  local state = call('GET', key)
  if state then
    if #state == 40 then
      version, lives, closed, birth, since, previous, current = unpack('>I1I4I7I7I7I7I7', state)
    elseif #state == 12 then
      version, lives, closed = unpack('>I1I4I7', state)
    else
      return
    end
    if version ~= VERSION then return end
  end
  if op == 'settle' then
    if operand.birth ~= birth then cost = 0 end
    op, operand = 'return', operand.place
  end
  local now = clock < since and since or clock
  local lag = now - clock
  local elapsed = now % period
  local start = now - elapsed
  if since < start then
    previous = since + period >= start and current or 0
    current = 0
  end

  -- The estimate is previous * (1 - elapsed / period) + current; all terms times `span` are integers.
  local overlap = span - (elapsed - elapsed % grain) / grain
  local room = threshold - current - cost
  local fits = room >= 0 and previous * overlap <= room * span or op == 'measure'
  local allowed = fits and closed <= clock or op == 'refund' or op == 'return' or op == 'charge'
  local retry, changed, receipt = 0, nil, nil
  if not allowed then
    if not fits then
      -- The call fits in this window once the weight of the previous window has fallen; or in the next window, once
      -- the weight of this window has.
      local fading, base = previous, -elapsed
      if room < 0 then fading, room, base = current, threshold - cost, period - elapsed end
      local part = room > 0 and room * span / fading or 0
      part = part < span and part - part % 1 or span
      retry = base + math.min(grain * (span - part), period) + lag
    end
  elseif cost > 0 and op ~= 'peek' then
    if op == 'decide' or op == 'acquire' then
      current = current + cost
      if op == 'acquire' then
        if birth == 0 then birth = operand end
        receipt = pack('>I7I7', birth, start)
      end
    elseif op == 'charge' then
      -- The weight of a count stays exact.
      local most = math.min((MOST - MOST % span) / span, 4294967295)
      current = math.min(current + cost, math.max(most, current))
    elseif op == 'refund' then
      previous = math.max(previous - math.max(cost - current, 0), 0)
      current = math.max(current - cost, 0)
    elseif op == 'return' then
      -- The units leave the window in which they were charged.
      local charged_at = operand
      if charged_at >= start then
        current = math.max(current - cost, 0)
      elseif charged_at + period >= start then
        previous = math.max(previous - cost, 0)
      end
    else
      error('unknown op ' .. op)
    end
    changed = pack('>I7I7I7I7', birth, start, previous, current)
  end

  local remaining, reset, slack = 0, 0, 0
  local free = (threshold - current) * span - previous * overlap
  if op == 'measure' then
    remaining = math.min(current + math.ceil(previous * overlap / span), 4294967295)
  elseif current < threshold and free > 0 and closed <= clock then
    remaining = (free - free % span) / span
  end
  if current > 0 then
    reset = 2 * period - elapsed + lag
  elseif previous > 0 then
    reset = period - elapsed + lag
  end
  return allowed, remaining, retry, reset, slack, version, lives, closed, changed, receipt
end
