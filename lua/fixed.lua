-- Fixed window: one count per window.
-- Twin of ratelimit-runtime/src/algorithm/fixed.rs.
--
-- State      string: its beginning (12), see `write_state.lua`; birth (7), 0 if no charge can be settled; start (7);
--            finish (7); count (7)
--
-- call, pack, unpack, key, clock, given, op, cost, birth, operand
--            see `prelude.lua`
-- threshold  units that a window admits
-- period     length of a window in microseconds
-- shift      microseconds from a calendar boundary to the next multiple of the period since the epoch; -1 if
--            windows do not begin at calendar boundaries, or have several lengths
-- first, second, third, last
--            if windows have several lengths, as months do, the boundaries of three windows. The process has computed
--            them for its own time
--
-- Returns the arguments of `answer.lua`.
local function fixed(
  call, pack, unpack, key, clock, given, op, cost, birth, operand, threshold, period, shift, first, second, third, last
)
  local VERSION, MOST = 8, 9007199254740991
  local version, lives, blocked, own_birth, start, finish, count = VERSION, 0, 0, 0, 0, 0, 0
  local state = call('GET', key)
  if state then
    if #state == 40 then
      version, lives, blocked, own_birth, start, finish, count = unpack('>I1I4I7I7I7I7I7', state)
    elseif #state == 12 then
      version, lives, blocked = unpack('>I1I4I7', state)
    else
      return
    end
    if version ~= VERSION then return end
  end
  local now = clock < start and start or clock

  -- A window lasts until it is over. An aligned one begins at a calendar boundary, any other with its first admitted
  -- call. A boundary before the epoch counts as the epoch.
  if count == 0 or finish <= now then
    count = 0
    -- `first` can be a position of `unpack`.
    if last then
      if now < first or now >= last then
        return nil, 'BADCLOCK a process and this server disagree about the time by more than a window of the calendar'
      end
      start = now < second and first or now < third and second or third
      finish = now < second and second or now < third and third or last
    elseif shift >= 0 then
      local elapsed = (now + shift) % period
      start, finish = now < elapsed and 0 or now - elapsed, now - elapsed + period
    else
      start, finish = now, now + period
    end
  end
  local left = finish - clock

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
    local is_its = operand == 0 or start <= operand and operand < finish
    if birth > 0 then is_its = birth == own_birth and operand == start end
    if is_its then count = math.max(count + cost, 0) end
  end
  if count ~= before then changed = pack('>I7I7I7I7', own_birth, start, finish, count) end

  local remaining, reset, slack = 0, 0, 0
  if measures then
    remaining = count
  elseif count < threshold and blocked <= clock then
    remaining = threshold - count
  end
  if count > 0 then reset = left end
  return allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt
end
