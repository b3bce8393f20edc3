-- Token bucket and leaky bucket: the level is the units that were taken, and drains at a steady rate.
-- Twin of ratelimit-runtime/src/algorithm/bucket/mod.rs, which explains the units.
--
-- The level can be above the capacity: after reservations, or after the capacity was lowered.
--
-- A process may spend leased units for a term after their charge, and leased units must not drain before they
-- are spent. `reserve` is the number of tokens that drain in a term. While leased units may be spent, the level
-- does not fall below the reserve, and a lease first raises the level to the reserve. So the level is never
-- below the level of a bucket that counts each unit when it is spent. How far it is above is not known, so nothing
-- is given back to a charge if leased units could be spent between the charge and its settlement.
--
-- State    string of 30 bytes: its beginning (5), at (7), level (7), token (7), drain (4). With a birth, of 37 bytes
--          and 15 or more: the number of steps (1), and so on, see `least_levels.lua`. While units are leased, 11
--          more bytes: the time until which they may be spent (7), the reserve in tokens (4). Then there are no steps,
--          and their number is 255. More bytes may follow, from a time with more steps or with a lease
--
-- call, pack, unpack, key, clock, given, op, cost
--          see `prelude.lua`; cost: the tokens of the call
-- operand  of the op `acquire`: the birth of a state without one; of `reserve`: a table of `wait`, the longest wait
--          until the reserved moment, and `birth`, such a birth, if there must be a receipt; of `cancel`: a table of
--          the last reservations, see below; of `return`: the time of the charge; of `settle`, which only limits that
--          do not lease have: the place in the receipt of the charge
-- burst    capacity in tokens
-- token    units of one token
-- drain    units that drain each microsecond
-- term     microseconds, if the limit leases; otherwise a number without a meaning
-- reserve  tokens, if the limit leases; otherwise nil
--
-- The table of the last reservations is the twin of `LastReservations`: `stop` is the time of the full bucket after the
-- last one, `birth` and `place` are its receipt, `count` is their number, and `moment` is the moment of the first one.
--
-- Returns the arguments of `answer.lua`. For an admitted `reserve`, `retry` is the wait until the reserved moment. If
-- the state has a birth, there is a receipt as of an `acquire`.

--@include least_levels

-- Returns the position of the time until which leased units may be spent; nil if a state has none.
local function position_of_lease(state)
  if #state == 41 then return 31 end
  if #state > 52 and string.byte(state, 38) == 255 then return 53 end
end

local function bucket(
  call, pack, unpack, key, clock, given, op, cost, operand, burst, token, drain, term, reserve
)
  local VERSION, BORN, MOST, CENTURY = 1, 65, 9007199254740991, 36525 * 86400000000
  local capacity, charge = burst * token, cost * token
  local version, lives, birth, at, level, old_token, old_drain
  local levels
  -- The time until which leased units may be spent; their reserve in tokens, and in units.
  local leased, kept, floor = 0, 0, 0
  local state = call('GET', key)
  if not state then
    version, lives, at, level, old_token, old_drain = VERSION, 0, 0, 0, token, drain
  else
    if #state ~= 30 and #state ~= 41 and #state < 52 then return end
    version, lives, at, level, old_token, old_drain = unpack('>I1I4I7I7I7I4', state)
    if #state < 52 then
      if version ~= VERSION then return end
    else
      if version ~= BORN then return end
      birth, at, level, old_token, old_drain = unpack('>I7I7I7I7I4', state, 6)
      levels = least_levels(pack, unpack, state, 38)
    end
    local position = position_of_lease(state)
    if position then leased, kept = unpack('>I7I4', state, position) end
  end
  local now = clock < at and at or clock
  -- A settlement and a measure of the units in use keep the rate of the state. A full bucket has no rate, so it takes
  -- the rate of the limit.
  if (op == 'settle' or op == 'charge' or op == 'measure') and at + math.ceil(level / old_drain) > now then
    token, drain = old_token, old_drain
    burst = math.min(burst, (MOST - MOST % token) / token)
    capacity, charge = burst * token, cost * token
  end
  local lag, level_before, full = now - clock, level, nil
  -- The level at the time at which a rejected call fits, before its charge, and the level now that drains to it.
  local level_then, level_now

  -- If the rate has changed, computes the level that the new rate would have given since the last change.
  if old_token ~= token or old_drain ~= drain then
    -- The time until the level has drained at the old rate. Then the bucket is full at any new rate as well,
    -- because the key may have expired. At an unchanged rate, the level gives this time.
    full = at + math.ceil(level / old_drain) - now
    if leased > at then
      full = math.max(full, leased + math.ceil(math.min(kept * old_token, level) / old_drain) - now)
    end
    if full <= 0 then
      level = 0
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
  if reserve and (op == 'decide' or op == 'peek') then level = math.max(level, reserve * token) end

  local allowed, retry, changed, receipt = level - capacity + charge <= 0, 0, nil, nil
  if op == 'cancel' then
    local last, full_at, is_last = operand, at + math.ceil(level_before / old_drain), false
    if birth then
      is_last = last.birth == birth and old_token == token and old_drain == drain
        and levels.take_back(last.place, last.count)
    else
      is_last = last.birth == 0 and last.stop == full_at
    end
    -- What has drained since the first moment may have been given back, or counts for a later charge that ends then.
    charge = math.max(charge - math.max(now - last.moment, 0) * drain, 0)
    -- If the bucket is full earlier, the count was reset or refunded since: then the script cannot tell which
    -- units are of these reservations.
    allowed = is_last or last.stop > full_at and level <= capacity
    if not is_last then cost = 0 end
  else
    allowed = allowed or cost == 0 or op == 'refund' or op == 'return' or op == 'charge' or op == 'settle'
  end
  if not allowed and op ~= 'cancel' then
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
    if op == 'reserve' then
      local longest_wait = operand.wait
      allowed = retry <= longest_wait and level_now + charge <= MOST
    end
  end
  if allowed and cost > 0 and op ~= 'peek' then
    if levels then
      levels.lower(level, full)
    elseif op == 'acquire' or op == 'reserve' and operand.birth then
      -- Without an end of the TTL, `write_state.lua` writes the version as well.
      version, lives, birth = BORN, 0, op == 'acquire' and operand or operand.birth
      levels = least_levels(pack, unpack)
    end
    if op == 'decide' then
      level = level + charge
    elseif op == 'reserve' then
      if retry > 0 then
        -- The call starts at its reserved moment, whatever is given back until then. So the charges before it can give
        -- back the level right before that moment, and no more.
        if levels then levels.lower(level_then) end
        level = level_now
      end
      level = level + charge
      if levels and retry > 0 then
        levels.reserved = math.max(levels.reserved, clock + retry)
        receipt = pack('>I7I7', birth, levels.count_charge(level))
      end
    elseif op == 'acquire' then
      level = level + charge
      receipt = pack('>I7I7', birth, levels.count_charge(level))
    elseif op == 'charge' then
      level = math.min(level + charge, math.max(math.min(MOST, CENTURY * drain), level))
    elseif op == 'settle' then
      local place = operand
      cost = levels.give_back(place, charge)
      level = level - cost
    elseif op == 'return' then
      -- Units that may have drained since the charge are not given back a second time. While a moment is reserved, less
      -- than all may be left for it.
      local is_ahead = level > capacity or levels and levels.reserved > now
      if not is_ahead and old_token == token and old_drain == drain then
        local charged_at = operand
        local drained = math.max(now - charged_at, 0) * drain
        level = math.max(level - math.max(math.min(charge, capacity) - drained, 0), floor)
      end
    elseif op == 'cancel' or op == 'refund' then
      level = math.max(level - charge, 0)
    else
      error('unknown op ' .. op)
    end
    full = nil
    changed = pack('>I7I7I7I4', now, level, token, drain)
    if reserve and op == 'decide' then
      leased, kept = math.max(leased, now + term), math.max(kept, reserve)
    end
    if levels then
      levels.lower(leased > now and 0 or level)
      changed = pack('>I7', birth) .. changed .. levels.packed(leased > now)
    end
    if leased > now then
      floor = math.min(kept * token, level)
      changed = changed .. pack('>I7I4', leased, kept)
    end
    -- If nothing is given back, nothing changes.
    if cost == 0 then changed = nil end
  end

  local remaining, reset, slack = 0, 0, 0
  if op == 'measure' then
    remaining = math.min(math.ceil(level / token), 4294967295)
  elseif level < capacity then
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
      reset, slack = leased - now + math.ceil(floor / drain), 4294967295
    end
    if full and full < reset then reset = full end
    reset = reset + lag
  end
  return allowed, remaining, retry, reset, slack, version, lives, changed, receipt
end
