-- Fixed window: one count per window.
-- Twin of ratelimit-runtime/src/algorithm/fixed.rs.
--
-- State      string: its beginning (12), see `write_state.lua`; birth (7), 0 if no charge can be settled; start (7);
--            count (7)
--
-- call, pack, unpack, key, clock, given, op, cost, birth, operand
--            see `prelude.lua`
-- threshold  units that a window admits
-- period     length of a window in microseconds
-- shift      microseconds from a calendar boundary to the next multiple of the period since the epoch; -1 if
--            windows do not begin at calendar boundaries
--
-- Returns the arguments of `answer.lua`.
local function fixed(
  call, pack, unpack, key, clock, given, op, cost, birth, operand, threshold, period, shift
)
  local VERSION, MOST = 8, 9007199254740991
  local version, lives, blocked, own_birth, start, count = VERSION, 0, 0, 0, 0, 0
  local state = call('GET', key)
  if state then
    if #state == 33 then
      version, lives, blocked, own_birth, start, count = unpack('>I1I4I7I7I7I7', state)
    elseif #state == 12 then
      version, lives, blocked = unpack('>I1I4I7', state)
    else
      return
    end
    if version ~= VERSION then return end
  end
  local now = clock < start and start or clock

  -- An aligned window begins at a calendar boundary, any other window with its first admitted call. A boundary
  -- before the epoch counts as the epoch.
  local left
  if shift >= 0 then
    local elapsed = (now + shift) % period
    local boundary = now < elapsed and 0 or now - elapsed
    if start < boundary then count = 0 end
    start, left = boundary, now - elapsed + period - clock
  else
    if count == 0 or start + period <= now then start, count = now, 0 end
    left = start + period - clock
  end

  local before, measures = count, op == 'peek' and operand == 1
  local fits = count + cost <= threshold or op == 'correct' or measures
  local allowed = fits and blocked <= clock or op == 'correct'
  local retry, changed, receipt = 0, nil, nil
  if not fits then
    retry = left
  elseif op == 'take' and allowed then
    count = count + cost
    if birth > 0 and cost > 0 then
      if own_birth == 0 then own_birth = birth end
      receipt = pack('>I7I7', own_birth, start)
    end
  elseif op == 'correct' and cost > 0 then
    count = math.min(count + cost, MOST)
  elseif op == 'correct' then
    -- Only the window of the charge gets its units back.
    local is_its = operand == 0 or start <= operand and operand < clock + left
    if birth > 0 then is_its = birth == own_birth and operand == start end
    if is_its then count = math.max(count + cost, 0) end
  end
  if count ~= before then changed = pack('>I7I7I7', own_birth, start, count) end

  local remaining, reset, slack = 0, 0, 0
  if measures then
    remaining = count
  elseif count < threshold and blocked <= clock then
    remaining = threshold - count
  end
  if count > 0 then reset = left end
  return allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt
end
