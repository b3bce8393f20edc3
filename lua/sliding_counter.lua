-- Sliding counter: the counts of two adjacent windows. The older count is weighted by the part of its window
-- that still overlaps the trailing period.
-- Twin of ratelimit-runtime/src/algorithm/sliding_counter.rs.
--
-- State      string: its beginning (12), see `write_state.lua`; birth (7), 0 if no charge can be settled; start (7);
--            previous (7); current (7)
--
-- call, pack, unpack, key, clock, given, op, cost, birth, operand
--            see `prelude.lua`
-- threshold  units that a period admits
-- period     microseconds
-- grain      the unit in which the overlap is measured, in microseconds
-- span       the period in grains, rounded up
--
-- Returns the arguments of `answer.lua`.
local function sliding_counter(
  call, pack, unpack, key, clock, given, op, cost, birth, operand, threshold, period, grain, span
)
  local VERSION, MOST = 8, 9007199254740991
  local version, lives, blocked, own_birth, since, previous, current = VERSION, 0, 0, 0, 0, 0, 0
  local state = call('GET', key)
  if state then
    if #state == 40 then
      version, lives, blocked, own_birth, since, previous, current = unpack('>I1I4I7I7I7I7I7', state)
    elseif #state == 12 then
      version, lives, blocked = unpack('>I1I4I7', state)
    else
      return
    end
    if version ~= VERSION then return end
  end
  local now = clock < since and since or clock
  local lag = now - clock
  local elapsed = now % period
  local start = now - elapsed
  if since < start then
    previous = since + period >= start and current or 0
    current = 0
  end

  -- The estimate is previous * (1 - elapsed / period) + current; all terms times `span` are integers. A debt times its
  -- weight can be too large for a number. `room * span` is at most 2^52, so its rounded quotient is on the same side of
  -- each integer as the exact one.
  local overlap = span - (elapsed - elapsed % grain) / grain
  local room, measures = threshold - current - cost, op == 'peek' and operand == 1
  local fits = room >= 0 and previous <= room * span / overlap or op == 'correct' or measures
  local allowed = fits and blocked <= clock or op == 'correct'
  local retry, changed, receipt = 0, nil, nil
  local previous_before, before = previous, current
  if not fits then
    -- The call fits in this window once the weight of the previous window has fallen; or in the next window, once
    -- the weight of this window has.
    local fading, base = previous, -elapsed
    if room < 0 then fading, room, base = current, threshold - cost, period - elapsed end
    local part = room > 0 and room * span / fading or 0
    part = part < span and part - part % 1 or span
    retry = base + math.min(grain * (span - part), period) + lag
  elseif op == 'take' and allowed then
    current = current + cost
    if birth > 0 and cost > 0 then
      if own_birth == 0 then own_birth = birth end
      receipt = pack('>I7I7', own_birth, start)
    end
  elseif op == 'correct' and cost > 0 then
    current = math.min(current + cost, MOST)
  elseif op == 'correct' and birth == 0 and operand == 0 then
    previous = math.max(previous + math.min(current + cost, 0), 0)
    current = math.max(current + cost, 0)
  elseif op == 'correct' and (birth == 0 or birth == own_birth) then
    -- Units leave the window in which they were charged.
    if operand >= start then
      current = math.max(current + cost, 0)
    elseif operand + period >= start then
      previous = math.max(previous + cost, 0)
    end
  end
  if current ~= before or previous ~= previous_before then
    changed = pack('>I7I7I7I7', own_birth, start, previous, current)
  end

  local remaining, reset, slack = 0, 0, 0
  local free = (threshold - current) * span - previous * overlap
  if measures then
    remaining = math.min(current + math.ceil(previous * overlap / span), MOST)
  elseif current < threshold and free > 0 and blocked <= clock then
    remaining = (free - free % span) / span
  end
  if current > 0 then
    reset = 2 * period - elapsed + lag
  elseif previous > 0 then
    reset = period - elapsed + lag
  end
  return allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt
end
