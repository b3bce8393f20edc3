-- Sliding counter: the counts of two adjacent windows. The older count is weighted by the part of its window
-- that still overlaps the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding_counter.rs.
--
-- State      string of 20 bytes: its beginning (5), start (7), previous (4), current (4); with a birth, of 27 bytes
--
-- call, pack, unpack, key, clock, given, op, cost
--            see `prelude.lua`; cost: the units of the call
-- operand    of the op `return`: the time of the charge; of `acquire`: the birth of a state without one
-- threshold  units that a period admits
-- period     microseconds
-- grain      the unit in which the overlap is measured, in microseconds
-- span       the period in grains, rounded up
--
-- Returns the arguments of `answer.lua`.
local function sliding_counter(
  call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, grain, span
)
  local VERSION, BORN, MOST = 1, 65, 9007199254740991
  local version, lives, birth, since, previous, current
  local state = call('GET', key)
  if not state then
    version, lives, since, previous, current = VERSION, 0, 0, 0, 0
  elseif #state == 20 then
    version, lives, since, previous, current = unpack('>I1I4I7I4I4', state)
    if version ~= VERSION then return end
  else
    if #state ~= 27 then return end
    version, lives, birth, since, previous, current = unpack('>I1I4I7I7I4I4', state)
    if version ~= BORN then return end
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
  local allowed = room >= 0 and previous * overlap <= room * span
    or cost == 0 or op == 'refund' or op == 'return' or op == 'charge'
  local retry, changed, receipt = 0, nil, nil
  if not allowed then
    -- The call fits in this window once the weight of the previous window has fallen; or in the next window, once
    -- the weight of this window has.
    local fading, base = previous, -elapsed
    if room < 0 then fading, room, base = current, threshold - cost, period - elapsed end
    local fits = room > 0 and room * span / fading or 0
    fits = fits < span and fits - fits % 1 or span
    local wait = grain * (span - fits)
    if wait > period then wait = period end
    retry = base + wait + lag
  elseif cost > 0 and op ~= 'peek' then
    if op == 'decide' then
      current = current + cost
    elseif op == 'acquire' then
      current = current + cost
      -- Without an end of the TTL, `write_state.lua` writes the version as well.
      if not birth then version, lives, birth = BORN, 0, operand end
      receipt = pack('>I7I7', birth, start)
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
    changed = birth and pack('>I7I7I4I4', birth, start, previous, current)
      or pack('>I7I4I4', start, previous, current)
  end

  local remaining, reset, slack = 0, 0, 0
  local free = (threshold - current) * span - previous * overlap
  if op == 'measure' then
    remaining = math.min(current + math.ceil(previous * overlap / span), 4294967295)
  elseif current < threshold and free > 0 then
    remaining = (free - free % span) / span
  end
  if current > 0 then
    reset = 2 * period - elapsed + lag
  elseif previous > 0 then
    reset = period - elapsed + lag
  end
  return allowed, remaining, retry, reset, slack, version, lives, changed, receipt
end
