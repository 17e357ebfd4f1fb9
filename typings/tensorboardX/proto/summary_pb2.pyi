class HistogramProto: ...

class Summary:
    class Image:
        def __init__(self, *, height: int, width: int, colorspace: int, encoded_image_string: bytes) -> None: ...

    class Value:
        def __init__(
            self,
            *,
            tag: str,
            simple_value: float | None = None,
            image: Summary.Image | None = None,
            histo: HistogramProto | None = None,
        ) -> None: ...

    def __init__(self, *, value: list[Value]) -> None: ...
