-- Reads what processes announce.
--
-- KEYS: the announcements.
-- ARGV: the most bytes of an announcement. Larger ones are left out, and so are those that have expired.
local announced = {}
for _, key in ipairs(KEYS) do
  -- Another type of key raises an error, which must not hide the other announcements.
  local text = redis.pcall('GETRANGE', key, 0, ARGV[1])
  if type(text) == 'string' and text ~= '' and #text <= tonumber(ARGV[1]) then
    announced[#announced + 1] = text
  end
end
return announced
