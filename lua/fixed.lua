-- Fixed window: one count per window.
-- Twin of ratelimit-runtime/src/algorithm/fixed.rs.
--
-- State      string: its beginning (12), see `write_state.lua`; birth (7), 0 if no charge can be settled; start (7);
--            count (7)
--
-- call, pack, unpack, key, clock, given, op, cost
--            see `prelude.lua`; cost: the units of the call
-- operand    of the op `return`: the time of the charge; of `settle`: a table of its `birth` and `place`; of `acquire`:
--            the birth of a state without one
-- threshold  units that a window admits
-- period     length of a window in microseconds
-- shift      microseconds from a calendar boundary to the next multiple of the period since the epoch; -1 if
--            windows do not begin at calendar boundaries
--
-- Returns the arguments of `answer.lua`.
local function fixed(
  call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, shift
)
  local VERSION, MOST = 8, 4294967295
  local version, lives, closed, birth, start, count = VERSION, 0, 0, 0, 0, 0
  local state = call('GET', key)
  if state then
    if #state == 33 then
      version, lives, closed, birth, start, count = unpack('>I1I4I7I7I7I7', state)
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

  local fits = count + cost <= threshold or op == 'measure'
  local allowed = fits and closed <= clock or op == 'refund' or op == 'return' or op == 'charge'
  local retry, changed, receipt = 0, nil, nil
  if not allowed then
    if not fits then retry = left end
  elseif cost > 0 and op ~= 'peek' then
    if op == 'decide' or op == 'acquire' then
      count = count + cost
      if op == 'acquire' then
        if birth == 0 then birth = operand end
        receipt = pack('>I7I7', birth, start)
      end
    elseif op == 'charge' then
      count = math.min(count + cost, MOST)
    elseif op == 'refund' or op == 'return' then
      local charged_at = op == 'return' and operand or start
      -- A return lowers the count only if the units were charged in this window.
      if start <= charged_at and charged_at < clock + left then count = math.max(count - cost, 0) end
    else
      error('unknown op ' .. op)
    end
    changed = pack('>I7I7I7', birth, start, count)
  end

  local remaining, reset, slack = 0, 0, 0
  if op == 'measure' then
    remaining = count
  elseif count < threshold and closed <= clock then
    remaining = threshold - count
  end
  if count > 0 then reset = left end
  return allowed, remaining, retry, reset, slack, version, lives, closed, changed, receipt
end
