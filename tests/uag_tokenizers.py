"""Tokenizers of every kind, real ones and small ones trained here, and text that tries them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mistral_common
import sentencepiece
import tiktoken
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_mistral_common import MistralCommonBackend

from sglang_ext.demo.smollm2 import smollm2
from sglang_ext.uag.text.translator import SpecialMap, Translator
from sglang_ext.uag.text.vocabulary import Vocabulary

MISTRAL = Path(mistral_common.__file__).parent / "data"
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it doesn't stop: it's a habit. PACK MY BOX with QUIZ VEX",
    "def f(x):\n\tif x == 1234567890:\n\t\treturn [x / 2, 'a']\n\n    # four spaces; <b>bold</b> & 100% {ok}\n",
    "Привет, мир! Съешь ещё этих мягких французских булок. Größe naïve café",
    "日本語のテキスト。漢字とカタカナ 中文字符没有空格所以很长 한국어 문장 عربي हिन्दी",
] * 3
FRAGMENTS = [
    "Hello", " world", "  two  spaces", "\n\n\n", "\t\tif x:\n", "don't", " it's", " naïve café", "Привет", " мир",
    "日本語", "漢字", "한국어", "عربي", "हिन्दी", "🤷🏽‍♀️", " 👨‍👩‍👧 ", "1234567890123", "3.14", "\r\n", " ",
    "\u00a0", "▁", "Ġ", "<|im_end|>", "</s>", "[INST]", "<think>", "e\u0301", "ﬁ", "ÅB", "a", "A", "'", "don'", "ABC",
    "d", "<0x41>", "\x00",
]


def text(most: int = 12) -> st.SearchStrategy[str]:
    """Text in many scripts, of pieces that tokenizers treat differently."""
    part = st.one_of(st.sampled_from(FRAGMENTS), st.sampled_from(FRAGMENTS), st.text(max_size=4))
    return st.lists(part, max_size=most).map("".join)


def byte_level(size: int = 420, special: Sequence[str] = ("<|end|>", "<|start|>"), regex: bool = True) -> Any:
    """Byte-level BPE, with GPT-2's pattern or with none."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(s, normalized=False, special=True) for s in special]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[0])


def byte_fallback(scheme: str) -> Any:
    """BPE with byte fallback as Llama, Mistral and Gemma have it: the space mark by Metaspace (`always`, `first`,
    `never`) or by normalizers (`prepend`), and added tokens that are text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *model["vocab"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(names)}, unk_token="<unk>", byte_fallback=True,
                                     merges=[tuple(m) for m in model["merges"]], fuse_unk=True))
    if scheme == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in (2, 3, 4)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram() -> Any:
    """Unigram without byte fallback: text beyond its alphabet cannot be written."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=500, show_progress=False, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def wordpiece() -> Any:
    """Lower-cases and drops spaces: not to be translated."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=400, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[SEP]")


def compatibility_forms() -> Any:
    """Byte-level BPE behind NFKC, which writes some texts otherwise than they are."""
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


def mistral(file: str) -> Any:
    return MistralCommonBackend(tokenizer_path=str(MISTRAL / file))


def slow_sentencepiece() -> Any:
    """What a slow tokenizer of transformers offers, around a real SentencePiece model."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(MISTRAL / "tokenizer.model.v1"))
    ids = range(model.vocab_size())
    return SimpleNamespace(sp_model=model, get_vocab=lambda: {model.id_to_piece(i): i for i in ids}, bos_token_id=1,
                           eos_token_id=2, encode=lambda text, add_special_tokens: [1, *model.encode(text)])


def tiktoken_wrapper(pattern: str, *pieces: bytes) -> Any:
    """A tokenizer of transformers around a `tiktoken.Encoding` with control tokens.

    Args:
        pattern: of its pre-tokens.
        pieces: of more than one byte, in the order of their merges.
    """
    ranks = {piece: i for i, piece in enumerate([*(bytes([b]) for b in range(256)), *pieces])}
    end = len(ranks) + 1
    encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks,
                                 special_tokens={"<|im_end|>": len(ranks), "<|endoftext|>": end})
    return SimpleNamespace(model=encoding, eos_token_id=end,
                           encode=lambda text, add_special_tokens: encoding.encode(text))


QWEN = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
        r"|\s+(?!\S)|\s+")
WITH_SUFFIX = (r"[^\r\n\p{L}\p{N}]?\p{L}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
"""As of o200k: a contraction belongs to the word before it, so two pre-tokens become one with the next letter."""
WITH_SPELLED_SUFFIX = r"\p{L}+(?i:'re|'ve)?|[^\s\p{L}]|\s+"
"""The same, where an apostrophe alone is a pre-token: three become one with the next letter."""


MAKERS: dict[str, Callable[[], Any]] = {
    "smollm2": lambda: AutoTokenizer.from_pretrained(smollm2()),
    "tekken": lambda: mistral("tekken_240911.json"),
    "mistral": lambda: mistral("mistral_instruct_tokenizer_240323.model.v3"),
    "slow": slow_sentencepiece,
    "tiktoken": lambda: tiktoken_wrapper(QWEN, b"he", b"ll", b"hell", b" w", b"or"),
    "suffixes": lambda: tiktoken_wrapper(WITH_SUFFIX, b"e'", b"n'", b"n't", b"e're", b"'r", b"r'"),
    "spelled suffixes": lambda: tiktoken_wrapper(WITH_SPELLED_SUFFIX, b"e'", b"r'"),
    "byte-level": byte_level,
    "unsplit": lambda: byte_level(regex=False),
    "always": lambda: byte_fallback("always"),
    "first": lambda: byte_fallback("first"),
    "never": lambda: byte_fallback("never"),
    "prepend": lambda: byte_fallback("prepend"),
    "unigram": unigram,
    "nfkc": compatibility_forms,
    "wordpiece": wordpiece,
}
WITH_ALL_BYTES = ("tekken", "mistral", "slow", "tiktoken", "suffixes", "byte-level", "unsplit", "always",
                  "first", "never", "prepend")
"""Vocabularies that write any bytes."""
ABLE = (*WITH_ALL_BYTES, "smollm2", "unigram", "nfkc")


@cache
def tokenizer(name: str) -> Any:
    return MAKERS[name]()


@cache
def vocabulary(name: str) -> Vocabulary:
    return Vocabulary.of(tokenizer(name))


@cache
def translator(target: str, draft: str) -> Translator:
    return Translator(vocabulary(target), vocabulary(draft), SpecialMap.of(vocabulary(target), vocabulary(draft)))


def written(vocabulary: Vocabulary, ids: Sequence[int]) -> bytes:
    return b"".join(vocabulary.pieces[i] for i in ids)


def writable(name: str, body: str) -> str:
    """The text without the characters that this vocabulary cannot write."""
    return "".join(filter(vocabulary(name).writes, body))


def made(*special: str, text: tuple[str, ...] = (), bos: str | None = None, pad: str | None = None) -> Vocabulary:
    """Byte-level BPE with these control tokens, the first its end of text, and added tokens that are text."""
    tokenizer = byte_level(special=special)
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in text])
    tokenizer.bos_token = bos
    tokenizer.pad_token = pad
    return Vocabulary.of(tokenizer)
