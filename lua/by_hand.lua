-- Runs the script of one call by hand: takes text as arguments, and returns the reply as text.
-- ARCHITECTURE.md shows how.
--
-- KEYS[1]  the key
-- ARGV     `name=value`, in any order. The defaults are `op=take`, `cost=1`, `birth=0` and `operand=0`. With `clock`,
--          the script uses that time. Times are in microseconds
-- Reply    list of `name=value`; or an error
--
-- The runtime defines `LAYOUT` and `NAMES`, the format and the names of the values of ARGV[1] of the script.

local function script(ARGV)
  --@include one
end

local given = { op = 'take', cost = '1', birth = '0', operand = '0' }
for _, argument in ipairs(ARGV) do
  local name, value = string.match(argument, '^(%l+)=(%S+)$')
  if not name then return { err = 'ERR ' .. argument .. ': an argument is name=value' } end
  given[name] = value
end

if not string.find(' take peek correct hold ', ' ' .. given.op .. ' ', 1, true) then
  return { err = 'ERR op=' .. given.op .. ': an op is take, peek, correct or hold' }
end
local clock, values = given.clock, {}
given.clock = nil
for name in string.gmatch(NAMES, '%S+') do
  local value = given[name]
  if name ~= 'op' then value = tonumber(value) end
  if not value then return { err = 'ERR ' .. name .. '= is missing or no number' } end
  values[#values + 1], given[name] = value, nil
end
local unknown = next(given)
if unknown then
  return { err = 'ERR ' .. unknown .. ': the arguments are ' .. NAMES .. ' clock' }
end
-- `LAYOUT` adds the zero byte after `op`.
local arguments = { struct.pack(LAYOUT, _G.unpack(values)) }
if clock then arguments[2] = struct.pack('>I7', tonumber(clock)) end

local reply = script(arguments)
if type(reply) == 'table' then return reply end
local text = {}
local numbers = { struct.unpack('>I7I1I7I7I7I7', reply) }
for index, name in ipairs({ 'clock', 'allowed', 'remaining', 'retry', 'reset', 'slack' }) do
  text[index] = name .. '=' .. string.format('%.0f', numbers[index])
end
return text
