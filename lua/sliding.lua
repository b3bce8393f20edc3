-- Sliding window: a unit counts for a period after its charge, never less, and in three cases longer: by less than a
-- tick if the period is above 71 minutes; by less than a cell, about 0.1 % of the period, if the threshold is above
-- 1,000, or while debts (units above the threshold, by corrections) make many records; and after a step of the clock
-- backwards, by at most that step. Twin of ratelimit-runtime/src/algorithm/sliding.rs.
--
-- The value of the key is one string: a head, and a ring of records. A record is a time, and the units that were
-- charged at that time or, if charges share it, shortly before. The newest record is in the head, the others are in the
-- ring, the oldest first. A charge drops the records that have left the window. Then it adds its units to the newest
-- record, or moves that one into the ring and becomes the newest. A rejected call writes nothing.
--
-- Times. The head has the time of the newest record in microseconds. The ring has times in ticks since the epoch,
-- rounded up. A tick is the shortest power of two, in microseconds, for which a period has at most 2^32 - 2 ticks: 1
-- microsecond for periods of up to 71 minutes. The ring keeps the low 32 bits of a time: no record is older than the
-- newest one by more than a period and a tick, so the newest one tells the high bits. A record leaves the window a
-- period after its time. A clock before the newest record counts as the time of that record.
--
-- Sharing. Charges of one tick share a record. A record has a unit at least, so under a threshold of up to 1,000 each
-- tick has a record of its own, unless debts have made 1,016 records. If the threshold is above, or if 1,016 records
-- are in the window, a charge shares the newest record if both are in one cell. Cells divide the time since the
-- epoch: a cell is a thousandth of the period, rounded up to ticks. A shared record has the latest of its times. A
-- charge that finds 1,016 records, and shares none, moves the newest into the ring and joins the records of each cell
-- into one: at most 1,002 cells overlap a period and a tick. So at least 14 records come before the next join.
--
-- Corrections. One above 0 charges its units now, whatever the limit. One below 0 gives units back: with the place of a
-- charge, to its record, at most what that has, and nothing once a period has passed since the charge; without, to the
-- newest records first. A receipt has a place and the birth of the state that was charged, a number that no other state
-- has; a state with another birth gives nothing back. A place without a birth is the time of a charge that had no
-- receipt. A correction, and a charge that joins records or needs more slots, writes the whole ring.
--
-- Head, in bytes:
--   0 its beginning (12): `version`, `lives`, `blocked`, see `write_state.lua`. A blocked key without charges ends here
--  12 `own_birth` (7): 0 until a take needs a receipt
--  19 `joined` (7): the latest tick of a record that charges of several ticks share. The charge of a place without a
--     record of its tick is in the next record of its cell, if that is not after `joined`
--  26 `total` (7): the sum of the units of all records. A record that has left the window counts until a charge
--     drops it
--  33 `last` (7) and `units` (7): the time and the units of the newest record
--  47 `first` (2), `count` (2) and `slots` (2): the slot of the ring with the oldest record, the number of records in
--     the ring, and the number of its slots. It has 4 slots at first, and doubles them up to what the threshold needs
-- Ring: the slots, each a time in ticks (4) and units (4). Once a charge moves a record into the ring while 2^32 units
-- are in the window, a slot has 7 bytes for the units, and the version is 9 instead of 8. A charge that finds no unit
-- in the window gives them 4 bytes for the units again.
--
-- call, pack, unpack, key, clock, given, op, cost, birth, operand
--            the arguments of all algorithms, see `prelude.lua`. The place of a charge, an operand, is its time in
--            microseconds
-- threshold  units that a period admits, below 2^53; at least the cost of a take. It can be another than before
-- period     microseconds; it is a part of the key, so never another than before
--
-- Returns the arguments of `answer.lua`; nothing if the value is no state of these versions. `changed` is the head
-- after its beginning, which `answer.lua` writes; empty if the state was written here; nil if nothing has changed.
local function sliding(
  call, pack, unpack, key, clock, given, op, cost, birth, operand, threshold, period
)
  -- A name from outside of this function would cost time in every call (`benches/all -- scripts`).
  local VERSION, WIDE, HEAD, MOST, LOW = 8, 9, 53, 1016, 4294967296
  local floor, ceil, min, format, sub = math.floor, math.ceil, math.min, string.format, string.sub
  local tick = 1
  while period > tick * (LOW - 2) do tick = tick * 2 end
  local cell = ceil(period / tick / 1000)

  -- A small ring, of 127 slots, is read with its head.
  local state = call('GETRANGE', key, '0', threshold <= 128 and '1068' or '52')
  local version, lives, blocked, own_birth, joined, total = VERSION, 0, 0, 0, 0, 0
  local last, units, first, count, slots = 0, 0, 0, 0, 0
  if #state == 12 then
    version, lives, blocked = unpack('>I1I4I7', state)
  elseif state ~= '' then
    if #state < HEAD then return end
    version, lives, blocked, own_birth, joined, total, last, units, first, count, slots =
      unpack('>I1I4I7I7I7I7I7I7I2I2I2', state)
    if slots >= MOST or count > slots or first > slots then return end
  end
  if version ~= VERSION and version ~= WIDE then return end
  local size, format_of = 8, '>I4I4'
  if version == WIDE then size, format_of = 11, '>I4I7' end
  local now = math.max(clock, last)
  local at, newest = ceil(now / tick), ceil(last / tick)
  -- The first tick that has not left the window.
  local oldest = floor((now - period) / tick) + 1

  -- Skips the records that have left the window. Of a call that does not fit, finds the time of the record that must
  -- leave before it fits. `excess` is the number of units that must leave. Units that have left the window count in
  -- `total` and in `excess` until their record is skipped.
  local measures = op == 'peek' and operand == 1
  local is_limited = op ~= 'correct' and not measures
  local used, dead, blocker = total, 0, last
  local excess = is_limited and total + cost - threshold or 0
  if last + period <= now then
    used, dead, excess = 0, count, 0
  else
    local chunk, from, index = state, 0, 0
    while index < count do
      local offset = HEAD + (first + index) % slots * size - from
      if offset < 0 or offset + size > #chunk then
        from, offset = from + offset, 0
        chunk = call('GETRANGE', key, format('%d', from), format('%d', from + 255))
        if #chunk < size then return end
      end
      local low, its = unpack(format_of, chunk, offset + 1)
      local its_tick = newest - (newest - low) % LOW
      if its_tick < oldest then
        dead, used = index + 1, used - its
      elseif excess <= its then
        if excess > 0 then blocker = its_tick * tick end
        break
      end
      index, excess = index + 1, excess - its
    end
  end

  local fits = not is_limited or used + cost <= threshold
  local allowed = fits and blocked <= clock or op == 'correct'
  local retry, changed, receipt = 0, nil, nil
  local gives = op == 'correct' and cost < 0 and used > 0
  if op == 'correct' then cost = min(cost, 9007199254740991 - used) end
  local adds = cost > 0 and (op == 'correct' or op == 'take' and allowed)
  local is_full = count - dead >= MOST - 1
  local shares = at == newest or (threshold > 1000 or is_full) and floor(at / cell) == floor(newest / cell)
  -- All records of the ring, the oldest first; nil if they are not needed.
  local ring
  local widens = used >= LOW and version == VERSION
  if gives or adds and used > 0 and not shares and (count - dead == slots or widens) then
    ring = count > 0 and call('GETRANGE', key, HEAD, HEAD + slots * size - 1) or ''
    if #ring < count * size then return end
    ring = sub(sub(ring, first * size + 1) .. sub(ring, 1, first * size), 1, count * size)
  end

  if not allowed then
    if not fits then retry = math.max(blocker + period - clock, 0) end
  elseif adds then
    first, count = (first + dead) % math.max(slots, 1), count - dead
    if ring then ring = sub(ring, dead * size + 1) end
    if used == 0 then
      units = cost
      -- Drops a ring with more slots than the threshold needs, and a wide one.
      if slots > 8 and slots >= threshold or version == WIDE then version, size, slots, ring = VERSION, 8, 0, '' end
    elseif shares then
      if at > newest then joined = at end
      units = units + cost
    else
      if ring and widens then
        ring = string.gsub(ring, '........', function(record) return pack('>I4I7', unpack('>I4I4', record)) end)
        version, size, format_of = WIDE, 11, '>I4I7'
      end
      local record = pack(format_of, newest % LOW, units)
      if not ring then
        call('SETRANGE', key, format('%d', HEAD + (first + count) % slots * size), record)
        count = count + 1
      else
        ring = ring .. record
        count = count + 1
        if is_full then
          local parts, sums, records = {}, {}, 0
          for from = 1, count * size, size do
            local low, its = unpack(format_of, ring, from)
            local its_tick = newest - (newest - low) % LOW
            if records > 0 and floor(its_tick / cell) == floor(parts[records] / cell) then
              parts[records], sums[records] = its_tick, sums[records] + its
              if its_tick > joined then joined = its_tick end
            else
              records = records + 1
              parts[records], sums[records] = its_tick, its
            end
          end
          for index = 1, records do parts[index] = pack(format_of, parts[index] % LOW, sums[index]) end
          ring, count = table.concat(parts), records
        end
        slots = math.max(slots, 4)
        while slots < count do slots = slots * 2 end
        if slots >= threshold and count < threshold then slots = threshold - 1 end
        slots = min(slots, MOST - 1)
      end
      units = cost
    end
    last, used = now, used + cost
    total = used
    if op == 'take' and birth > 0 then
      if own_birth == 0 then own_birth = birth end
      receipt = pack('>I7I7', own_birth, last)
    end
  elseif gives then
    local given_back, removed = 0, nil
    if birth == 0 and operand == 0 then
      given_back = min(-cost, used)
      local rest = given_back
      while rest > units do
        rest, count = rest - units, count - 1
        local low, its = unpack(format_of, ring, count * size + 1)
        newest, units = newest - (newest - low) % LOW, its
        last = newest * tick
      end
      units = units - rest
    elseif birth == 0 or birth == own_birth then
      -- A charge is in the record of its tick, or in a shared one: the next later record of its cell.
      local moment = ceil(operand / tick)
      local low, high = 0, count
      while low < high do
        local middle = floor((low + high) / 2)
        local age = (newest - unpack('>I4', ring, middle * size + 1)) % LOW
        if newest - age < moment then low = middle + 1 else high = middle end
      end
      local its_tick, its = newest, units
      if low < count then
        its_tick, its = unpack(format_of, ring, low * size + 1)
        its_tick = newest - (newest - its_tick) % LOW
      end
      local is_shared = its_tick > moment and its_tick <= joined and floor(its_tick / cell) == floor(moment / cell)
      if (its_tick == moment or is_shared) and operand + period > now then
        given_back = min(-cost, its)
        its = its - given_back
        if low == count then
          units = its
        elseif its > 0 then
          local record = pack(format_of, its_tick % LOW, its)
          call('SETRANGE', key, format('%d', HEAD + (first + low) % slots * size), record)
        else
          removed = low * size
        end
      end
    end
    if units == 0 and count > 0 then
      -- The last record of the ring becomes the newest.
      count = count - 1
      local low, its = unpack(format_of, ring, count * size + 1)
      newest, units = newest - (newest - low) % LOW, its
      last = newest * tick
    end
    if removed then
      ring, count = sub(ring, 1, removed) .. sub(ring, removed + size + 1), count - 1
    else
      ring = nil
    end
    total, used = total - given_back, used - given_back
    adds = given_back > 0
  end

  if adds then
    if ring then first = 0 end
    changed = pack('>I7I7I7I7I7I2I2I2', own_birth, joined, total, last, units, first, count, slots)
    if ring then
      local free = string.rep('\0', slots * size - #ring)
      call('SET', key, pack('>I1I4I7', version, lives, blocked) .. changed .. ring .. free, 'KEEPTTL')
      changed = ''
    end
  end
  local remaining, slack = 0, 0
  if measures then
    remaining = used
  elseif used < threshold and blocked <= clock then
    remaining = threshold - used
  end
  local reset = used > 0 and last + period - clock or 0
  return allowed, remaining, retry, reset, slack, version, lives, blocked, changed, receipt
end
