-- Token bucket and leaky bucket: the level is the units that were taken, and drains at a steady rate.
-- Twin of ratelimit-runtime/src/algorithm/bucket.rs, which explains the units.
--
-- The level can be above the capacity: after reservations, or after the capacity was lowered.
--
-- A process may spend leased units for a term after their charge, and leased units must not drain before they
-- are spent. `reserve` is the number of tokens that drain in a term. While leased units may be spent, the level
-- does not fall below the reserve, and a lease first raises the level to the reserve. So the level is never
-- below the level of a bucket that counts each unit when it is spent. How far it is above is not known, so nothing
-- is given back to a charge if leased units could be spent between the charge and its settlement.
--
-- State    string: its beginning (12), see `write_state.lua`; at (7); level (7); token (7); drain (7). Once units were
--          leased or a charge can be settled, also the time until which leased units may be spent (7); their reserve in
--          tokens (7); the birth (7), 0 if no charge can be settled; and the steps, see `least_levels.lua`. More bytes
--          may follow, from a time with more steps
--
-- call, pack, unpack, key, clock, given, op, cost, birth, operand
--          see `prelude.lua`. A take with a wait is admitted now, or for a moment at most so many microseconds ahead:
--          `retry` is then the wait until that moment. The op `cancel` gives back a reserved moment that no call uses,
--          if it is the last charge; otherwise it is rejected. Its cost is below 0, `birth` is the birth of the
--          receipt, and its operand has the place and the moment
-- burst    capacity in tokens
-- token    units of one token
-- drain    units that drain each microsecond
-- term     microseconds, if the limit leases; otherwise a number without a meaning
-- reserve  tokens, if the limit leases; otherwise nil
--
-- Returns the arguments of `answer.lua`.

--@include least_levels

local function bucket(
  call, pack, unpack, key, clock, given, op, cost, birth, operand, burst, token, drain, term, reserve
)
  local VERSION, SHORT, MOST, CENTURY = 8, 40, 9007199254740991, 36525 * 86400000000
  local capacity, charge = burst * token, cost * token
  local version, lives, blocked, at, level, old_token, old_drain = VERSION, 0, 0, 0, 0, token, drain
  local own_birth, levels = 0, nil
  -- The time until which leased units may be spent; their reserve in tokens, and in units.
  local leased, kept, floor = 0, 0, 0
  local state = call('GET', key)
  if state and #state == 12 then
    version, lives, blocked = unpack('>I1I4I7', state)
  elseif state then
    if #state ~= SHORT and #state < SHORT + 36 then return end
    version, lives, blocked, at, level, old_token, old_drain = unpack('>I1I4I7I7I7I7I7', state)
    if version ~= VERSION then return end
    if #state > SHORT then
      leased, kept, own_birth = unpack('>I7I7I7', state, SHORT + 1)
      if own_birth > 0 then levels = least_levels(pack, unpack, state, SHORT + 22) end
    end
  end
  if version ~= VERSION then return end
  local now = clock < at and at or clock
  local lag, full = now - clock, nil
  local measures = op == 'peek' and operand == 1
  local is_take = op == 'take' or op == 'peek' and not measures
  -- The level at the time at which a rejected call fits, before its charge, and the level now that drains to it.
  local level_then, level_now

  -- If the rate has changed, computes the level that the new rate would have given since the last change.
  local has_rate = old_token == token and old_drain == drain
  if not has_rate then
    -- The time until the level has drained at the old rate. Then the bucket is full at any new rate as well,
    -- because the key may have expired. At an unchanged rate, the level gives this time.
    full = at + math.ceil(level / old_drain) - now
    if leased > at then
      full = math.max(full, leased + math.ceil(math.min(kept * old_token, level) / old_drain) - now)
    end
    if full <= 0 then
      level, has_rate = 0, true
    elseif not is_take then
      -- Only takes change the rate.
      token, drain, full = old_token, old_drain, nil
      local most = math.min(MOST, CENTURY * drain)
      burst = math.min(burst, (most - most % token) / token)
      capacity, charge = burst * token, cost * token
    elseif old_token ~= token then
      level = math.min(math.ceil(level * token / old_token), MOST)
    end
  end
  local since = at
  if leased > at then
    since = leased < now and leased or now
    floor = math.min(kept * token, level)
    level = math.max(level - (since - at) * drain, floor)
  end
  level = level - (now - since) * drain
  if level < 0 then level = 0 end
  if leased <= now then kept, floor = 0, 0 end
  local standing = level
  if reserve and is_take and birth == 0 then level = math.max(level, reserve * token) end

  local allowed, retry, is_changed, changed, receipt = level - capacity + charge <= 0, 0, false, nil, nil
  local fits = allowed or not is_take
  if op == 'cancel' then
    allowed = birth ~= own_birth
    if allowed then
      -- A count that was reset has no such charge, so nothing is left to give back.
      cost = 0
    else
      levels.lower(level, full)
      local given = levels.take_back(operand[1], -charge)
      allowed = given ~= nil
      -- The charges before it were recorded with this moment after them. Without it, they can give back what has not
      -- drained since.
      local rest = -charge - math.max(now - operand[2], 0) * drain
      charge = -math.max(given or 0, rest)
    end
  else
    allowed = fits and blocked <= clock or op == 'correct'
  end
  if not fits and not allowed then
    local rest, until_spent = level, 0
    if capacity - charge < floor then
      until_spent = leased - now
      rest = math.max(level - until_spent * drain, floor)
    end
    retry = until_spent + math.ceil((rest - capacity + charge) / drain)
    if full and full < retry then retry = full end
    -- The call fits after the term of leased units, which do not drain before.
    level_then, level_now = math.max(level - retry * drain, 0), math.max(level, rest + until_spent * drain)
    retry = retry + lag
    if op == 'take' and operand > 0 then
      allowed = retry <= operand and level_now + charge <= MOST and blocked <= clock
    end
  end
  if allowed and cost ~= 0 and op ~= 'peek' then
    local before = level
    if levels then levels.lower(level, full) end
    if op == 'take' then
      if retry > 0 then
        -- The call starts at its reserved moment, whatever is given back until then. So the charges before it can give
        -- back the level right before that moment, and no more.
        if levels then levels.lower(level_then) end
        level = level_now
      end
      if not levels and birth > 0 then own_birth, levels = birth, least_levels(pack, unpack) end
      level = level + charge
      if birth > 0 then
        if retry > 0 then levels.reserved = math.max(levels.reserved, clock + retry) end
        receipt = pack('>I7I7', own_birth, levels.count_charge(level))
      elseif levels then
        levels.pass()
      end
    elseif op == 'cancel' then
      level = math.max(level + charge, 0)
    elseif cost > 0 then
      level = math.min(level + charge, math.max(math.min(MOST, CENTURY * drain), level))
    elseif birth > 0 then
      if birth == own_birth then level = level - levels.give_back(operand, -charge) end
    elseif operand > 0 then
      -- Units that may have drained since the charge are not given back a second time. While a moment is reserved, less
      -- than all may be left for it.
      local is_ahead = level > capacity or levels and levels.reserved > now
      if not is_ahead and has_rate then
        local drained = math.max(now - operand, 0) * drain
        level = math.max(level - math.max(math.min(-charge, capacity) - drained, 0), floor)
      end
    else
      level = math.max(level + charge, 0)
    end
    is_changed = level ~= before or op == 'cancel'
  end
  if is_changed then
    full = nil
    changed = pack('>I7I7I7I7', now, level, token, drain)
    if reserve and op == 'take' and birth == 0 then
      leased, kept = math.max(leased, now + term), math.max(kept, reserve)
    end
    if leased > now then floor = math.min(kept * token, level) end
    if levels then
      levels.lower(leased > now and 0 or level)
      changed = changed .. pack('>I7I7I7', leased, kept, own_birth) .. levels.packed()
    elseif leased > now or state and #state > SHORT then
      changed = changed .. pack('>I7I7I7', leased, kept, 0) .. string.rep('\0', 15)
    end
  end

  local remaining, reset, slack = 0, 0, 0
  if measures then
    remaining = math.ceil(level / token)
  elseif level < capacity and blocked <= clock then
    local left = capacity - level
    remaining = (left - left % token) / token
  end
  if not changed then level = standing end
  if level > 0 then
    local over = level % drain
    reset = (level - over) / drain
    if over > 0 then reset, slack = reset + 1, drain - over end
    if leased > now and reset < leased - now + math.ceil(floor / drain) then
      -- Later calls at the same time do not change this wait.
      reset, slack = leased - now + math.ceil(floor / drain), MOST
    end
    if full and full < reset then reset = full end
    reset = reset + lag
  end
  return allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt
end
