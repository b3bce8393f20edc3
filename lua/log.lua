-- Exact sliding window of a limit whose threshold or period is too large for the ring of `sliding.lua`: the log of
-- the calls admitted in the trailing period. Any limit can decide calls of a log. Once all records of a log have left
-- the window, a limit with a ring starts a ring.
--
-- A call adds one record to the log, for any cost. The newest records are in a ring of records inside the state. It
-- grows with the log. A full one of 4,096 records becomes a segment: a key of its own. The state then keeps the
-- first time and the units of each segment in a directory. So a call on a log of any length reads and writes
-- only parts of the state and of one or two segments. Nearly all calls need only this file; `lower.lua` and
-- `pages.lua` return units to their charge, and `segments.lua` has the slow paths.
--
-- State      string that begins with a header of 29 bytes: its beginning (5), head: the first slot in use (2),
--            length: the slots in use (2), slots: all slots of the ring (2), used: the units in the log (4), time
--            of the last record (7) and of the first (7). If the log has or had segments, 24 bytes follow: number
--            of the first segment (6), count of segments (4), offset: records of the first segment that are gone
--            (2), front: its units that still count (4), filed: units in all segments (4), first: records of the
--            directory that are gone (4). Then follow the ring and the directory, each with its records, and then
--            the sum (4) of each block of 64 records
--            With a birth, the header is 7 bytes longer: the birth is behind its beginning
-- Record     time (7), cost (4); in the directory, the first time and the units of a segment
-- Segment    string: 4,096 records, and their sums
--
-- call, pack, unpack, key, clock, given, op, cost
--            see `prelude.lua`; cost: the units of the call
-- operand    of the op `return`: the time of the charge; of `acquire`: the birth of a state without one
-- threshold  units that a period admits
-- period     microseconds
-- state      the first 60 bytes of the value of the key
-- ring       the function `sliding`; nil if the terms have no ring
--
-- Returns the arguments of `answer.lua`.

--@include lower, pages, segments

local function sliding_log(
  call, pack, unpack, key, clock, given, op, cost, operand, threshold, period, state, ring
)
  -- The versions of a state without segments, and of one with a directory. With a birth, they are larger by `BORN`.
  local SHORT, LONG, BORN, MOST = 2, 130, 64, 4294967295
  local version, lives, birth, head, length, slots, used, last, oldest
  local start, number, count, offset, front, filed, first = 29, 0, 0, 0, 0, 0, 0
  if state == '' then
    version, lives, head, length, slots, used, last, oldest = SHORT, 0, 0, 0, 0, 0, 0, 0
  else
    if #state < 29 then return end
    version, lives, head, length, slots, used, last, oldest = unpack('>I1I4I2I2I2I4I7I7', state)
    if version == SHORT + BORN or version == LONG + BORN then
      if #state < 36 then return end
      birth, head, length, slots, used, last, oldest = unpack('>I7I2I2I2I4I7I7', state, 6)
      version, start = version - BORN, 36
    end
    if version == LONG and #state >= start + 24 then
      number, count, offset, front, filed, first = unpack('>I6I4I2I4I4I4', state, start + 1)
      start = start + 24
    elseif version ~= SHORT then
      return
    end
  end
  local now = clock < last and last or clock
  -- The beginning of the keys of segments, which are in the hash slot of the state.
  local base
  if count > 0 then base = (string.find(key, '{', 1, true) and key or key .. '{' .. key .. '}') .. ':' end
  -- The keys of segments that have left the window, as many as this call removes. The others expire.
  local left

  -- Records at `now - period` and before have left the window.
  local expired = used > 0 and oldest + period <= now
  local adds = op == 'decide' or op == 'acquire' or op == 'charge'
  if expired then
    if last + period <= now then
      left = {}
      for index = math.max(count - 16, 0), count - 1 do left[#left + 1] = base .. number + index end
      head, length, used, count, expired = 0, 0, 0, 0, false
      if version == LONG then version, start, slots = SHORT, birth and 36 or 29, 0 end
      if ring and adds and 0 < cost and cost <= threshold then
        -- Nothing of this log counts any more. Its last time becomes a small ring, see `ring.lua`.
        local is_wide = period > 3601000000
        local small = pack('>I1I4', (is_wide and 4 or 3) + (birth and BORN or 0), lives)
        if birth then small = small .. pack('>I7', birth) end
        small = small .. pack(is_wide and '>I7I5I2I3' or '>I7I4I2I2', last, 0, 65535, 1)
        call('SET', key, small, 'KEEPTTL')
        for index = 1, #left do redis.pcall('UNLINK', left[index]) end
        return ring(call, pack, unpack, key, clock, given, op, cost, operand, threshold, period)
      end
    else
      -- In nearly all calls, one record has left the window.
      local from, behind = start + head * 11, slots - head
      if count > 0 then from, behind = offset * 11, 4096 - offset end
      if behind > 1 then
        -- A segment that cannot be read takes the slow path.
        local read = count > 0 and redis.pcall or call
        local two = read('GETRANGE', count > 0 and base .. number or key, from, from + 21)
        if #two == 22 then
          local _, units, at, behind_units = unpack('>I7I4I7I4', two)
          -- The first record always has units: `oldest` is then the time at which one unit leaves the window.
          if at + period > now and behind_units > 0 and (count == 0 or units <= front) then
            used, oldest, expired = used - units, at, false
            if count > 0 then
              offset, front, filed = offset + 1, front - units, filed - units
            else
              head, length = (head + 1) % slots, length - 1
            end
          end
        end
      end
    end
  end

  local returns = op == 'return' and cost > 0
  -- By how many units the call is too large, if it can be.
  local is_limited = op ~= 'charge' and op ~= 'refund' and op ~= 'return'
  local excess, blocker = is_limited and used + cost - threshold or 0, nil

  -- Most charges that are returned are in the ring. Sometimes a record without units is then at an end of the log.
  local rest, is_ragged = cost, length == 0
  if returns and length > 0 and not expired then
    local gone, newest, empties
    gone, length, newest, empties = lower(call, call, pack, unpack, key, start, head, slots, length,
      count == 0 and oldest, count == 0 and last, operand, cost)
    used, last, rest = used - gone, newest or last, cost - gone
    is_ragged = length == 0 or count == 0 and empties
  end

  -- Calls that need more of the log use the functions of `segments.lua`. Only such calls create these functions,
  -- because that takes as long as a whole call.
  local grows = adds and excess <= 0 and length == slots and slots >= 64
  local lowers = returns and (count > 0 and rest > 0 or is_ragged and (count > 0 or used > 0))
  if expired or lowers or op == 'refund' or excess > 1 or grows then
    left = left or {}
    local log = {
      key = key, clock = clock, given = given, threshold = threshold, period = period, now = now, base = base,
      left = left, version = version, lives = lives, birth = birth, start = start, head = head, length = length,
      slots = slots, used = used, last = last, oldest = oldest, number = number, count = count,
      offset = offset, front = front, filed = filed, first = first,
    }
    local expire, grow, cut, trim
    local function prepare() expire, blocker, grow, cut, trim = long_log(call, pack, unpack, SHORT, LONG, BORN, log) end
    if expired or not returns then prepare() end
    if expired then
      expire(now - period)
      if is_limited then excess = log.used + cost - threshold end
    end
    if op == 'charge' then cost = math.min(cost, MOST - log.used) end
    if op == 'refund' and cost > 0 then
      -- Removes the newest units. The last record that stays may lose a part of its units.
      cut(math.min(cost, log.used))
    elseif returns then
      if rest > 0 and log.used > 0 then
        local give_back = log_pages(call, pack, unpack, log)
        is_ragged = give_back(operand, rest, expired) or is_ragged
      end
      if is_ragged then
        if not trim then prepare() end
        trim()
      end
    elseif adds and cost > 0 and excess <= 0 and log.length == slots and slots >= 64 then
      grow()
    end
    version, start, head, length, slots = log.version, log.start, log.head, log.length, log.slots
    used, last, oldest, number, count = log.used, log.last, log.oldest, log.number, log.count
    offset, front, filed, first = log.offset, log.front, log.filed, log.first
  end

  local retry, changed, receipt = 0, nil, nil
  local allowed = excess <= 0 or cost == 0
  if op == 'charge' then cost = math.min(cost, MOST - used) end
  if not allowed then
    -- The call fits once all excess units have left the window.
    local at = oldest
    if excess > 1 then at = blocker(excess) end
    retry = at + period - clock
  elseif cost > 0 and op ~= 'peek' and (adds or state ~= '') then
    if adds then
      if length == slots then
        -- A small full ring is written again in order, twice as large. None of its blocks is full.
        local ring, size = '', slots == 0 and 8 or slots * 2
        if slots < threshold and threshold < size then size = threshold end
        if slots > 0 then
          local from = start + head * 11
          ring = call('GETRANGE', key, from, -1) .. call('GETRANGE', key, start, from - 1)
        end
        local blank = string.rep('\0', (size - slots) * 11 + (size < 64 and 0 or 4))
        local header = pack('>I1I4', birth and version + BORN or version, lives) .. string.rep('\0', start - 5)
        call('SET', key, header .. ring .. blank, 'KEEPTTL')
        head, slots = 0, size
      end
      if used == 0 then oldest = now end
      last, used = now, used + cost
      local slot = (head + length) % slots
      local from = start + slot * 11
      -- Saves time: the server takes longer to convert a number to text.
      call('SETRANGE', key, string.format('%d', from), pack('>I7I4', now, cost))
      length = length + 1
      -- The call that fills a block writes the sum of the block, unless some of its records are gone.
      if slot % 64 == 63 and length >= 64 then
        local block, sum = call('GETRANGE', key, from - 693, from + 10), 0
        for at = 8, 704, 11 do sum = sum + unpack('>I4', block, at) end
        call('SETRANGE', key, start + slots * 11 + (slot - 63) / 16, pack('>I4', sum))
      end
    end
    if op == 'acquire' then
      if not birth then
        -- Makes room for the birth.
        birth = operand
        local rest = call('GETRANGE', key, 5, -1)
        call('SET', key, pack('>I1I4I7', version + BORN, lives, birth) .. rest, 'KEEPTTL')
      end
      receipt = pack('>I7I7', birth, now)
    end
    changed = pack('>I2I2I2I4I7I7', head, length, slots, used, last, oldest)
    if birth then changed = pack('>I7', birth) .. changed end
    if version == LONG then
      changed = changed .. pack('>I6I4I2I4I4I4', number, count, offset, front, filed, first)
    end
    -- UNLINK fails if the hash slot migrates to another node and the segment is there already.
    for index = 1, left and #left or 0 do redis.pcall('UNLINK', left[index]) end
  end

  local remaining, reset, slack = 0, 0, 0
  if op == 'measure' then
    remaining = used
  elseif used < threshold then
    remaining = threshold - used
  end
  if used > 0 then reset = last + period - clock end
  if birth then version = version + BORN end
  return allowed, remaining, retry, reset, slack, version, lives, changed, receipt
end
