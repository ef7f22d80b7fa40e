-- Tokenizers: what the Python libraries tokenizers and sentencepiece make of the same texts
-- (tests/lua/tokenizers, by tests/equivalence/make_tokenizers.py), and files that are wrong.
local base = require 'nnscaler._C.base'
local tokenizer = require 'nnscaler.data.tokenizer'

local given = 'tests/lua/tokenizers/'
local dir = os.tmpname() .. '.d'
base.make_folder(dir)
teardown(function() os.execute("rm -rf '" .. dir .. "'") end)

for _, name in ipairs { 'gpt2.json', 'llama3.json', 'added.json', 'pieces.model' } do
  describe(name, function()
    local code = tokenizer(given .. name)
    local cases = base.json_decode(base.file_read(given .. name:gsub('%.%w+$', '.cases.json')))

    it('gives the ids of the Python library for every text', function()
      assert.is_true(#cases >= 30)
      for _, case in ipairs(cases) do
        assert.same(case.ids, code:encode(case.text, false), case.text)
        assert.same(case.special, code:encode(case.text), case.text)
      end
    end)

    it('gives the text back as the Python library does', function()
      for _, case in ipairs(cases) do
        assert.equal(case.decoded, code:decode(case.ids))
      end
    end)

    it('knows its size and its tokens by name', function()
      local largest = 0
      for _, case in ipairs(cases) do largest = math.max(largest, unpack(case.special)) end
      assert.is_true(code.vocab > largest)
      local id = code:id(name == 'gpt2.json' and '<|endoftext|>' or '<|end|>')
      assert.is_true(id ~= nil and id < code.vocab)
      assert.is_nil(code:id 'no such token')
    end)

    it('refuses ids that it does not have', function()
      for _, id in ipairs { -1, code.vocab, 2 ^ 40 } do
        assert.error_matches(function() code:decode { id } end,
          ('id %d is outside the vocabulary of %d'):format(id, code.vocab):gsub('%-', '%%-') .. '$')
      end
    end)
  end)
end

describe('a byte-level tokenizer', function()
  it('takes time in proportion to a text without spaces', function()
    local code = tokenizer(given .. 'gpt2.json')
    local text = ('a'):rep(1000000)
    local start = base.clock()
    assert.equal(text, code:decode(code:encode(text, false)))
    assert.is_true(base.clock() - start < 20)
  end)

  it('refuses text that is not UTF-8, and says where', function()
    local code = tokenizer(given .. 'gpt2.json')
    for _, case in ipairs { { 'ab\255', 2 }, { 'ok \192\128', 3 }, { '\237\160\128', 0 },
      { 'cut \226\130', 4 } } do
      assert.error_matches(function() code:encode(case[1]) end,
        ('the text is not UTF%%-8: byte %d is 0x'):format(case[2]))
    end
  end)
end)

describe('a broken tokenizer file', function()
  local text = base.file_read(given .. 'llama3.json')

  local function refused(bytes, message)
    base.file_write(dir .. '/tokenizer.json', bytes)
    local ok, err = pcall(tokenizer, dir)
    assert.is_false(ok)
    assert.matches("^%[tokenizer.read%] '.*tokenizer.json': ", err.message)
    assert.matches(message, err.message)
  end

  -- The file with one change; the text that is changed has to be there.
  local function changed(from, to, message)
    local first, last = text:find(from, 1, true)
    assert.is_true(first ~= nil, from)
    refused(text:sub(1, first - 1) .. to .. text:sub(last + 1), message)
  end

  it('is refused when it ends early, wherever', function()
    for at = 1, #text - 1, 397 do refused(text:sub(1, at), 'it is not JSON: ') end
    refused('', 'it is not JSON: ')
    refused('[' .. ('['):rep(200000), 'it is not JSON: ')
    refused('[' .. ('['):rep(100000) .. (']'):rep(100000) .. ']', 'it is array; expected an object')
  end)

  it('is refused with a vocabulary that lacks the tokens of bytes', function()
    changed('"A":', '"AAA":', "the vocabulary lacks the token of byte 0x41 %('A'%)")
  end)

  it('is refused with merges of pieces that are not there', function()
    changed('"merges":[', '"merges":[["zq","A"],',
      "merge 0 %('zq' with 'A'%) needs the token 'zq', which the vocabulary lacks")
    changed('"merges":[', '"merges":[["Q","Z"],', "needs the token 'QZ'")
    changed('"merges":[', '"merges":[["A"],', 'merge 0 is array; expected two tokens')
    changed('"merges":[', '"merges":["A B C",', "merge 0 is 'A B C'; expected two tokens")
    changed('"merges":[', ('"merges":[%s1%s,'):format(('['):rep(50000), (']'):rep(50000)),
      'merge 0 is array; expected two tokens')
  end)

  it('is refused with ids that are no ids', function()
    for _, id in ipairs { '-1', '1.5', '"7"', '99999999999', 'null', '1e300', '{}' } do
      changed('"A":', ('"AAA":%s,"A":'):format(id), "the id of 'AAA' is .*; expected an integer")
    end
    changed('"A":', '"AAA":7,"A":', 'the id 7 stands for .* and for another token')
    changed('"added_tokens":[', '"added_tokens":[{"content":"A","id":3},',
      "the added token 'A' has the id 3, in the vocabulary")
    changed('"added_tokens":[', '"added_tokens":[{"content":"","id":3},', 'an added token is empty')
    changed('"added_tokens":[', '"added_tokens":[{"content":"B2"},', "'B2' has no id")
    changed('"added_tokens":[', '"added_tokens":[7,', 'an item of added_tokens is number')
  end)

  it('is refused with a pattern that is none', function()
    changed('"Regex":"', '"Regex":"(((', "the pattern '.*' is wrong at")
  end)

  it('is refused where it asks for what is not here, by its name', function()
    changed('"type":"BPE"', '"type":"Unigram"', "the model is 'Unigram'; expected BPE")
    changed('"byte_fallback":false', '"byte_fallback":true', 'byte_fallback')
    changed('"normalizer":null', '"normalizer":{"type":"Lowercase"}',
      "the normalizer 'Lowercase' is not here; expected NFC")
    changed('"type":"Split"', '"type":"Metaspace"', "the pre%-tokenizer 'Metaspace' is not here")
    changed('"behavior":"Isolated"', '"behavior":"MergedWithNext"', "behavior 'MergedWithNext'")
    changed('"type":"TemplateProcessing"', '"type":"BertProcessing"',
      "the post%-processor 'BertProcessing' is not here")
    changed('"special_tokens":{"<|begin|>"', '"special_tokens":{"<|start|>"',
      "names '<|begin|>', which its special_tokens lack")
  end)

  it('is refused where nothing is', function()
    assert.error_matches(function() tokenizer(dir .. '/none.json') end,
      "%[tokenizer.read%] cannot read '.*none.json': No such file")
    base.make_folder(dir .. '/empty')
    assert.error_matches(function() tokenizer(dir .. '/empty') end,
      'has no tokenizer.json and no tokenizer.model')
    base.file_write(dir .. '/wrong.model', 'not a model at all')
    assert.error_matches(function() tokenizer(dir .. '/wrong.model') end,
      'is not a SentencePiece model: ')
  end)

  it('is refused or works, whatever bytes are changed', function()
    local state = 1
    local function draw(below) -- a small generator of its own: the same bytes in every run
      state = (state * 48271) % 2147483647
      return state % below
    end
    local worked = 0
    for _ = 1, 400 do
      local bytes = text
      for _ = 1, 1 + draw(4) do
        local at = 1 + draw(#bytes)
        local what = draw(3)
        local middle = what == 0 and string.char(draw(256)) or what == 1 and ''
          or bytes:sub(at, at + draw(40))
        bytes = bytes:sub(1, at - 1) .. middle .. bytes:sub(at + 1)
      end
      base.file_write(dir .. '/tokenizer.json', bytes)
      local ok, made = pcall(tokenizer, dir)
      if ok then
        local _, ids = pcall(made.encode, made, 'A text – with 3 <|end|> tokens')
        if type(ids) == 'table' and ids.kind == nil then made:decode(ids) end
        worked = worked + 1
      else
        assert.matches('^%[tokenizer.read%] ', made.message)
        assert.equal('data', made.kind)
      end
    end
    assert.is_true(worked > 0 and worked < 400)
  end)

  it('stops at a pattern that would take forever', function()
    local first, last = text:find('"Regex":".-"[,}]')
    base.file_write(dir .. '/tokenizer.json', text:sub(1, first - 1)
      .. '"Regex":"(a+)+(a+)+(a+)+\\\\d"' .. text:sub(last))
    local code = tokenizer(dir)
    assert.error_matches(function() code:encode(('a'):rep(5000)) end,
      'the pattern of the tokenizer cannot split the text at byte 0: ')
  end)
end)
