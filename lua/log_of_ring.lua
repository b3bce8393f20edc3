-- Returns the log of `log.lua` with the charges of a ring of `ring.lua`. Each record has the units of one time.
--
-- version, lives, birth  of the log
-- base, width, time      of the ring
-- all                    its times that still count, oldest first
local function log_of_ring(pack, unpack, version, lives, birth, base, all, width, time)
  local records, sums, sum, units = {}, {}, 0, 0
  local at, oldest, last
  for from = 1, #all, width do
    local next_at = from + width <= #all and unpack(time, all, from + width)
    at = unpack(time, all, from)
    oldest, units = oldest or at, units + 1
    if at ~= next_at then
      records[#records + 1], last = pack('>I7I4', base + at, units), at
      sum, units = sum + units, 0
      -- Each block of 64 records has a sum.
      if #records % 64 == 0 then sums[#sums + 1], sum = pack('>I4', sum), 0 end
    end
  end
  -- Blocks with free slots have no valid sum.
  local length = #records
  local slots = length + -length % 64
  local state = pack('>I1I4', version, lives) .. (birth and pack('>I7', birth) or '')
  local header = pack('>I2I2I2I4I7I7', 0, length, slots, #all / width, last and base + last or 0,
    oldest and base + oldest or 0)
  return state .. header .. table.concat(records) .. string.rep('\0', (slots - length) * 11)
    .. table.concat(sums) .. string.rep('\0', (slots / 64 - #sums) * 4)
end
