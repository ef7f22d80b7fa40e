"""Writes tests/lua/tokenizers/: small tokenizers, and what the Python libraries make of texts in many
scripts, for specs without Python.

Run by hand when a case is added, with tokenizers and sentencepiece:
    python tests/equivalence/make_tokenizers.py tests/lua/tokenizers
"""
import io
import json
import pathlib
import sys

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)

corpus = [
    'All the world is a stage, and all the men and women merely players; they have their exits.',
    'Weiß der Geier, was die größte Straße kostet: 1234,56 Euro oder 78 %!',
    'Быть или не быть, вот в чём вопрос. Всё смешалось в доме Облонских.',
    '吾輩は猫である。名前はまだ無い。 道可道，非常道。名可名，非常名。',
    'كل البشر يولدون أحرارا ومتساوين في الكرامة والحقوق.',
    'सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।',
    'def f(x):\n    return [i ** 2 for i in range(x)]  # squares\n\n\tpass',
    "I'm sure they'll say we've done what's right, haven't they? It's 2026.",
]
texts = corpus + [
    '', ' ', '\n', '  two  spaces   three ', 'trailing \n', 'a\r\nb\r\n\r\nc', '\t\ttabs\tand spaces ',
    "DON'T SHOUT'S 'S 'ſ 1st 22nd 333rd 4444th 55555",
    'cafe\u0301 and café, A\u030a Å Å, \ufb01ne ½ ①', 'e\u0301' * 5,
    '👩‍👩‍👧‍👦 family 🇩🇪 flags 👍🏽', 'zero\u200bwidth\u00a0no-break\u3000wide\u2028line\x85next',
    'mixed日本語English中文한국어 조선글', 'नमस्ते Ελληνικά עברית ภาษาไทย',
    'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
    '<|end|>', 'text<|end|>more <|end|> <|endoftext|>!<|end|', '<|end|><|end|>x', '<|endoftext|>',
    'the mask  [MASK]  here', '[MASK]', ' [MASK]\n\nx', 'a word, swords word word2 (word) _word',
    'Café CAFÉ café cafe\u0301s, fine \ufb01ne finer', 'null\x00byte', '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0001f9ff',
]
llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(pre, **parts):
    t = Tokenizer(models.BPE(ignore_merges=parts.get('ignore_merges', False)))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if 'normalizer' in parts:
        t.normalizer = parts['normalizer']
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=parts.get('special', [])))
    t.add_tokens(parts.get('added', []))
    if 'post' in parts:
        t.post_processor = parts['post'](t)
    return t


byte_level = pre_tokenizers.ByteLevel
tokenizers = {
    'gpt2': train(byte_level(add_prefix_space=False), special=['<|endoftext|>'],
                  post=lambda t: processors.ByteLevel(trim_offsets=False)),
    'llama3': train(
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(llama3), 'isolated'),
                                 byte_level(add_prefix_space=False, use_regex=False)]),
        ignore_merges=True, special=['<|begin|>', '<|end|>', '<|endoftext|>'],
        post=lambda t: processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single='<|begin|> $A <|end|>', special_tokens=[
                ('<|begin|>', t.token_to_id('<|begin|>')), ('<|end|>', t.token_to_id('<|end|>'))])])),
    'added': train(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                 pre_tokenizers.Split('-', 'removed'),
                                 byte_level(add_prefix_space=True)]),
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.NFC()]),
        special=[AddedToken('<|end|>', special=True)],
        added=[AddedToken('[MASK]', lstrip=True, rstrip=True, normalized=False),
               AddedToken('word', single_word=True, normalized=False),
               AddedToken('\ufb01ne', normalized=True), '日本', '日本語']),
}
for name, t in tokenizers.items():
    t.save(str(out / f'{name}.json'), pretty=False)
    cases = []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        cases.append({'text': text, 'ids': ids, 'special': t.encode(text).ids,
                      'decoded': t.decode(ids)})
    (out / f'{name}.cases.json').write_text(json.dumps(cases))
    print(name, t.get_vocab_size())

model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(corpus * 3), model_writer=model, vocab_size=420, model_type='bpe',
    byte_fallback=True, normalization_rule_name='identity', hard_vocab_limit=False,
    user_defined_symbols=['<|end|>'], minloglevel=2)
(out / 'pieces.model').write_bytes(model.getvalue())
sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
cases = []
for text in texts:
    ids = sp.encode(text)
    cases.append({'text': text, 'ids': ids, 'special': [sp.bos_id()] + ids, 'decoded': sp.decode(ids)})
(out / 'pieces.cases.json').write_text(json.dumps(cases))
