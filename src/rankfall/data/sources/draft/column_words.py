"""Words of column names, in several languages, and the roles that they suggest."""

from __future__ import annotations

import re
import unicodedata

ID = {"id", "ids", "nr", "no", "num", "number", "nummer", "key", "code", "uuid", "guid", "hash", "kennung", "ident"}
MOMENT = {
    *("time", "timestamp", "ts", "date", "datetime", "datum", "zeit", "zeitpunkt", "zeitstempel", "uhrzeit"),
    *("at", "when", "created", "epoch", "hora", "fecha", "heure", "horodatage", "tijd", "ms", "utc"),
}
DAY = {"day", "tag", "dt", "ds", "date", "datum", "partition", "jour", "dia", "fecha"}

KEYS: dict[str, set[str]] = {
    "request": {
        *("request", "req", "requests", "query", "qid", "search", "srch", "impression", "imp", "auction", "slate"),
        *("session", "sess", "pageview", "pv", "page", "view", "list", "anfrage", "suche", "suchanfrage", "such"),
        *("sitzung", "seitenaufruf", "aufruf", "requete", "recherche", "solicitud", "busqueda", "trace", "rid"),
    },
    "item": {
        *("item", "iid", "product", "prod", "pid", "sku", "asin", "article", "artikel", "produkt", "video", "vid"),
        *("doc", "document", "docid", "ad", "song", "track", "movie", "film", "book", "hotel", "prop", "listing"),
        *("offer", "angebot", "news", "post", "content", "produit", "articulo", "producto", "candidate", "kandidat"),
        *("photo", "note", "job", "property", "restaurant", "recipe", "goods"),
    },
    "user": {
        *("user", "uid", "visitor", "customer", "cust", "client", "member", "kunde", "kunden", "nutzer", "benutzer"),
        *("besucher", "account", "konto", "person", "usuario", "cliente", "utilisateur", "cookie", "viewer", "shopper"),
        *("traveler", "guest", "subscriber", "profile"),
    },
}
LABEL = {
    *("click", "clicked", "clicks", "clk", "klick", "geklickt", "angeklickt", "clic", "purchase", "purchased"),
    *("bought", "buy", "gekauft", "kauf", "conversion", "converted", "booking", "booked", "gebucht", "label", "target"),
    *("relevance", "relevant", "rel", "relevanz", "like", "liked", "rating", "grade", "cart", "warenkorb", "favorite"),
    *("interaction", "interacted", "follow", "forward", "comment", "share", "install", "watched", "viewed", "played"),
    *("achat", "compra", "comprado", "bestellt", "ordered", "conv", "cvr", "feedback", "response", "engaged"),
}
CLICK = {"click", "clicked", "clicks", "clk", "klick", "geklickt", "angeklickt", "clic"}
SHOWN = {"shown", "show", "realshow", "displayed", "exposed", "exposure", "angezeigt", "gezeigt", "visible", "seen"}
VIEW = {"view", "viewed", "watched", "played"}
HISTORIC = {
    *("count", "cnt", "num", "avg", "mean", "rate", "ctr", "total", "sum", "anzahl", "ratio", "share", "days", "past"),
    *("last", "prev", "previous", "hist", "history", "prob", "pred", "predicted", "score"),
}
STAGE = {"stage", "stufe", "phase", "depth", "funnel", "layer", "etape", "tiefe", "event", "action", "step", "status"}
RANK = {"rank", "rang", "ranking", "order", "ord", "idx", "index", "platz"}
POSITION = {"position", "pos", "slot", "placement", "platz", "platzierung", "place", "posicion"}
SCORE = {"score", "scores", "logit", "prediction", "pred", "predicted", "punktzahl", "pctr", "pcvr"}
SEQUENCE = {"history", "hist", "sequence", "seq", "recent", "last", "past", "previous", "verlauf", "events"}
CATEGORY = {
    *("category", "cat", "kategorie", "brand", "marke", "type", "typ", "class", "group", "segment", "gender", "city"),
    *(
        "country",
        "location",
        "destination",
        "land",
        "stadt",
        "region",
        "zip",
        "plz",
        "device",
        "channel",
        "level",
        "author",
        "seller",
        "shop",
    ),
    *("store", "color", "farbe", "size", "genre", "language", "sprache", "province", "weekday", "month", "hour"),
}

COARSE = {"coarse", "rough", "grob"}

# Names of stages and of what happens to items, from the beginning of the funnel to its end.
FUNNEL: list[set[str]] = [
    {"candidate", "candidates", "pool", "none", "kandidat"},
    {"retrieval", "retrieved", "recall", "recalled", "match", "matched", "matching", "gefunden"},
    {"prerank", "preranked", "preranking", "preselection", "vorauswahl", "vorsortiert", "filter", "filtered"},
    COARSE,
    {"rank", "ranked", "ranking", "fine", "fein", "sortiert", "gerankt", "scored"},
    {"rerank", "reranked", "reranking", "mix", "mixed", "final", "blended"},
    {*SHOWN, "impression", "impressed", "view", "viewed", "ansicht", "display", "listed", "page"},
    {*CLICK, "detail", "open", "opened"},
    {"cart", "warenkorb", "basket", "wishlist", "addtocart"},
    {
        "purchase",
        "purchased",
        "bought",
        "buy",
        "kauf",
        "gekauft",
        "order",
        "ordered",
        "booking",
        "booked",
        "conversion",
    },
]
_PREFIXES = {"pre", "re", "p"}  # pre_rank, pre-rank and pCTR are one word
_OUTCOMES = {"neg": 0, "negative": 0, "dropped": 0, "pos": 1, "positive": 1, "kept": 1}


def words(name: str) -> list[str]:
    """Return the lower-case words of a name, without accents.

    >>> words("KundenNr"), words("pre_rank"), words("Größe (cm)"), words("userid"), words("Artikelnummer")
    (['kunden', 'nr'], ['prerank'], ['grosse', 'cm'], ['user', 'id'], ['artikel', 'nummer'])
    """
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", plain)
    parts = [part for part in re.split(r"[^a-z0-9]+", plain.lower()) if part]
    found: list[str] = []
    for part in parts:
        if found and found[-1] in _PREFIXES:
            found[-1] += part
        else:
            found += _split(part)
    return found


def _split(word: str) -> list[str]:
    """Split a word that ends in a word for ids, such as userid and Kundennummer, if the rest is a known key."""
    for ending in sorted(ID, key=len, reverse=True):
        rest = word.removesuffix(ending)
        if rest != word and any(rest in known for known in KEYS.values()):
            return [rest, ending]
    return [word]


def key_match(name: str, role: str) -> int:
    """Return how well a name fits a key: 3 for the key itself, 2 with other words for ids, 1 for an id of a part, or 0.

    >>> key_match("userId", "user"), key_match("user_city", "user"), key_match("parent_product_id", "item")
    (3, 0, 1)
    >>> key_match("visitor_country_id", "user")
    0
    """
    found = words(name)
    rest = [word for word in found if word not in ID]
    known = KEYS[role]
    if rest and all(word in known for word in rest):
        return 3
    if not rest and found:
        return 1 if role == "request" else 0  # a column "id"
    of_part = len(rest) < len(found) and any(word in known for word in rest) and not CATEGORY & set(rest)
    return 1 if of_part else 0


def funnel_place(name: str) -> tuple[int, int] | None:
    """Return the place of a stage in a funnel, from its name; None if the name is unknown.

    >>> funnel_place("prerank_neg") < funnel_place("rank_neg") < funnel_place("rank_pos") < funnel_place("is_shown")
    True
    >>> funnel_place("coarse_rank") < funnel_place("fine_rank")
    True
    """
    found = words(name)
    places = [place for place, known in enumerate(FUNNEL) if known & set(found)]
    if not places:
        return None
    place = min(places) if COARSE & set(found) else max(places)
    return place, max((_OUTCOMES[word] for word in found if word in _OUTCOMES), default=0)
