--- The page of `nnscaler plan --html` in a headless Chromium, light and dark: it draws without
--- anything from elsewhere, nothing is wider than the window, and its colours follow the system's.
--- Skipped where there is no Chromium (apt: chromium).
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()

local function browser()
  for _, name in ipairs { 'chromium', 'chromium-browser', 'google-chrome' } do
    if os.execute(('command -v %s >/dev/null 2>&1'):format(name)) == 0 then return name end
  end
end

-- What the page says of itself, by a script that the test puts behind it.
local kProbe = [[<script>
const rects = [...document.querySelectorAll('svg rect, svg polygon')].filter(
  e => e.getBoundingClientRect().width > 0).length;
const wide = document.documentElement.scrollWidth - window.innerWidth;
const colour = getComputedStyle(document.body).backgroundColor;
document.body.textContent = `drawn ${rects} wide ${wide} colour ${colour} `
  + `asked ${performance.getEntriesByType('resource').length}`;
</script></body></html>]]

local function run(name, flags, page)
  local path = folder .. '/page.html'
  base.file_write(path, page)
  local pipe = io.popen(('%s --headless --no-sandbox --disable-gpu --user-data-dir=%s/user '
    .. '--window-size=1000,800 %s --dump-dom file://%s 2>/dev/null'):format(name, folder, flags,
    path))
  local text = pipe:read '*a'
  pipe:close()
  return text
end

describe('the page of a plan', function()
  teardown(remove)

  it('draws in a browser, light and dark', function()
    local name = browser()
    if not name then
      pending 'no Chromium here (apt: chromium)'
      return
    end
    local out, code = shell.nnscaler('plan recipes/nanogpt.lua preset=tiny layers=3 width=32 '
      .. 'block=16 threads=1 pas_policy=pp --world 2 --hardware h100 grad_accumulation_steps=4 '
      .. '--html ' .. folder .. '/report.html')
    assert.equal(0, code, out)
    local page = base.file_read(folder .. '/report.html'):gsub('</body></html>%s*$',
      function() return kProbe end)
    local colours = {}
    for _, flags in ipairs { '', '--force-dark-mode --blink-settings=preferredColorScheme=0' } do
      local text = run(name, flags, page)
      local drawn, wide, colour, asked =
        text:match 'drawn (%d+) wide (%-?%d+) colour (rgb%b()) asked (%d+)'
      assert.is_truthy(drawn, text)
      assert.is_true(tonumber(drawn) > 20, text)
      assert.is_true(tonumber(wide) <= 0, text)
      assert.equal('0', asked)
      colours[#colours + 1] = colour
    end
    assert.same({ 'rgb(255, 255, 255)', 'rgb(22, 24, 28)' }, colours)
  end)
end)
