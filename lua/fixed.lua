-- Fixed window: one count per window.
-- Twin of ratelimit-runtime/src/algorithm/fixed.rs.
--
-- State      string of 16 bytes: its beginning (5), start (7), count (4); with a birth, of 23 bytes
--
-- call, pack, unpack, key, clock, given, op, cost
--            see `prelude.lua`; cost: the units of the call
-- operand    of the op `return`: the time of the charge; of `acquire`: the birth of a state without one
-- threshold  units that a window admits
-- period     length of a window in microseconds
-- shift      microseconds from a calendar boundary to the next multiple of the period since the epoch; -1 if
--            windows do not begin at calendar boundaries
--
-- Returns the arguments of `answer.lua`.
local function fixed(
  call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, shift
)
  local VERSION, BORN, MOST = 1, 65, 4294967295
  local version, lives, birth, start, count
  local state = call('GET', key)
  if not state then
    version, lives, start, count = VERSION, 0, 0, 0
  elseif #state == 16 then
    version, lives, start, count = unpack('>I1I4I7I4', state)
    if version ~= VERSION then return end
  else
    if #state ~= 23 then return end
    version, lives, birth, start, count = unpack('>I1I4I7I7I4', state)
    if version ~= BORN then return end
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

  local allowed = count + cost <= threshold or cost == 0 or op == 'refund' or op == 'return' or op == 'charge'
  local retry, changed, receipt = 0, nil, nil
  if not allowed then
    retry = left
  elseif cost > 0 and op ~= 'peek' then
    if op == 'decide' then
      count = count + cost
    elseif op == 'acquire' then
      count = count + cost
      -- Without an end of the TTL, `write_state.lua` writes the version as well.
      if not birth then version, lives, birth = BORN, 0, operand end
      receipt = pack('>I7I7', birth, start)
    elseif op == 'charge' then
      count = math.min(count + cost, MOST)
    elseif op == 'refund' or op == 'return' then
      local charged_at = op == 'return' and operand or start
      -- A return lowers the count only if the units were charged in this window.
      if start <= charged_at and charged_at < clock + left then count = math.max(count - cost, 0) end
    else
      error('unknown op ' .. op)
    end
    changed = birth and pack('>I7I7I4', birth, start, count) or pack('>I7I4', start, count)
  end

  local remaining, reset, slack = 0, 0, 0
  if op == 'measure' then
    remaining = count
  elseif count < threshold then
    remaining = threshold - count
  end
  if count > 0 then reset = left end
  return allowed, remaining, retry, reset, slack, version, lives, changed, receipt
end
