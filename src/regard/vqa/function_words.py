"""Function words: words such as "what", "is" and "the", by which alone no question can be understood.

Words that are not among them are content words. Lists are short: articles, pronouns, prepositions, question words and
auxiliary verbs that questions about pictures are made of.
"""

from __future__ import annotations

from regard.vqa.words import Words

FUNCTION_WORDS = {
    "English": "a about an and any are as at be by can could did do does for from had has have how in into is isnt it "
    "its many more most much of on one or other some that the their them there these they this those to was were what "
    "whats when where wheres which who whom whos whose why will with would you your",
    "German": "als am an auf aus bei beim da das dass dem den der des die dies diese diesem diesen dieser dieses ein "
    "eine einem einen einer eines er es etwas für gibt haben hat ich ihr im in ist kann man mit nach oder sich sie "
    "sieht sind so über um und unter viel viele vom von vor war waren was welche welchem welchen welcher welches wem "
    "wen wer werden wessen wie wieviel wieviele wird wo wofür woher wohin womit zu zum zur",
    "French": "a à au aux avec ce ces cet cette combien comment dans de des du elle elles en est estce et il ils la le "
    "les leur lui on ou où par pour pourquoi quand que quel quelle quelles quels qui quoi sa se ses son sont sur un "
    "une y",
    "Spanish": "a al como cómo con cual cuál cuales cuáles cuando cuándo cuanta cuánta cuantas cuántas cuanto cuánto "
    "cuantos cuántos de del donde dónde el ella en es esta está estan están este esto hay la las lo los o para por que "
    "qué quien quién se ser son su sus un una y",
    "Italian": "a al alla c che chi ci come con cosa cosè cè da dal dalla dei del della di dove dovè e è gli ha hanno "
    "i il in la le lo nel nella o per perché qual quale quali quando quante quanti quanto questa questo si sono su sul "
    "sulla un una uno",
    "Portuguese": "a à ao as com como da das de do dos e é ela ele em está estão esta este há isso isto na nas no nos "
    "o onde os ou para pela pelo por porque quais qual quando quantas quanto quantos que quem se são seu sua um uma",
    "Dutch": "aan als bij daar dat de deze die dit door een en er et heeft hebben het hij hoe hoeveel in is kan met "
    "naar of om op te uit van voor waar waarom wanneer was wat welk welke wie wordt ze zijn zo",
    "Polish": "co czego czy czyj dla do gdzie i ile jak jaka jaki jakie jakiego jakiej jakim jest kiedy kogo kto która "
    "które który ma mają na o od po są się ta te tego tej ten to tu w we z za ze",
}
_ENOUGH = 2  # function words of a language that a vocabulary has, at least


def function_words(words: Words) -> frozenset[str]:
    """The function words of the language that a vocabulary is in: the one of which it has most function words.

    None, if it has hardly any of all languages here: then every word counts as a content word.

    >>> sorted(function_words(Words(("cat", "is", "the", "what"))) & {"cat", "is", "the", "what"})
    ['is', 'the', 'what']
    >>> len(function_words(Words(("кошка", "что"))))
    0
    """
    lists = [frozenset(text.split()) for text in FUNCTION_WORDS.values()]
    best = max(lists, key=lambda each: len(each.intersection(words.known)))
    return best if len(best.intersection(words.known)) >= _ENOUGH else frozenset()
